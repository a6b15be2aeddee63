#!/bin/bash
# The start-up script of a pool's machines: starts a Fray agent on a VM of Google Cloud, or on a host of a TPU slice.
# It runs as root at each boot. It reads attributes of the VM's metadata: fray-root (the cluster), fray-pool,
# fray-machine (or fray-machines), and either fray-package (the URL of a wheel of Fray with its SHA-256) or fray-image (a
# container to run instead). After a failure it stores its log under the root: machines/<pool>/<machine>/boot-<host>.log.
set -euo pipefail

PREFIX="${FRAY_HOST_ROOT:-}" # tests use another folder
HOME_DIR="$PREFIX/opt/fray"
UNITS="$PREFIX/etc/systemd/system"
LOG="$PREFIX/var/log/fray-boot.log"
METADATA="http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance"
INSTALLER="https://astral.sh/uv/install.sh"

metadata() { curl -fsS --retry 5 --max-time 10 -H "Metadata-Flavor: Google" "$METADATA/$1"; }

# An optional attribute; prints nothing if the VM does not have it.
attribute() { metadata "attributes/$1" 2>/dev/null || true; }

encoded() { # the text, percent-encoded for a URL
  local LC_ALL=C text="$1" i char
  for ((i = 0; i < ${#text}; i++)); do
    char="${text:i:1}"
    case "$char" in
      [A-Za-z0-9._-]) printf '%s' "$char" ;;
      *) printf '%%%02X' "'$char" ;;
    esac
  done
}

# The machine of this host. If there are several, the number at the end of the TPU's name selects one.
machine() {
  local names number
  IFS=, read -r -a names <<<"$(attribute fray-machines)"
  number="$(attribute instance-id)"
  if [ "${#names[@]}" -eq 0 ]; then attribute fray-machine; else printf '%s' "${names[${number##*-}]}"; fi
}

upload() { curl -fsS --retry 5 --max-time 60 --data-binary "@$LOG.end" -H "Content-Type: text/plain" "$@"; }

token() { metadata service-accounts/default/token | sed 's/.*"access_token" *: *"\([^"]*\)".*/\1/'; }

tell_root() { # stores the end of the log, where `fray machines NAME` reads it
  local place="${root#*://}" host bucket key
  host="$(attribute agent-worker-number | grep . || echo 0)"
  key="machines/$(attribute fray-pool)/$(machine)/boot-$host.log"
  tail -c 100000 "$LOG" >"$LOG.end"
  case "$root" in
    gs://* | s3://*)
      bucket="${place%%/*}"
      place="${place#"$bucket"}"
      place="${place#/}"
      key="$(encoded "${place:+${place%/}/}$key")"
      ;;
  esac
  case "$root" in
    gs://*)
      upload -X POST -H "Authorization: Bearer $(token)" \
        "https://storage.googleapis.com/upload/storage/v1/b/$bucket/o?uploadType=media&name=$key"
      ;;
    s3://*) # with the keys in the environment; needs a curl that signs (7.87 or newer)
      local region="${AWS_REGION:-us-east-1}"
      [ -n "${AWS_ACCESS_KEY_ID:-}" ] || return 1
      upload -X PUT --aws-sigv4 "aws:amz:$region:s3" \
        --config <(printf 'user = "%s:%s"\n' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY") \
        "${AWS_ENDPOINT_URL:-https://s3.$region.amazonaws.com}/$bucket/${key//%2F//}"
      ;;
    file:///* | /*) # a shared folder
      install -D "$LOG.end" "$PREFIX${root#file://}/$key"
      ;;
    *) return 1 ;;
  esac
}

ended() { # $1: exit code of the script
  if [ "$1" -ne 0 ]; then
    echo "fray: this host has no agent: the step above failed with exit code $1"
    tell_root || echo "fray: this log could not be stored under $root either"
  fi
  cat "$LOG" >&3
}

# Downloads the wheel that $package names, with the host's rights on the bucket, and checks it. No index is asked for
# Fray itself: whoever registered its name there would own this host.
download_wheel() { # $1: the file to write
  local url="${package%%#sha256=*}" sum="${package##*#sha256=}" place
  case "$url" in
    gs://*)
      place="${url#gs://}"
      curl -fsS --retry 5 --max-time 300 -o "$1" -H "Authorization: Bearer $(token)" \
        "https://storage.googleapis.com/storage/v1/b/${place%%/*}/o/$(encoded "${place#*/}")?alt=media"
      ;;
    https://*) curl -fsSL --retry 5 --max-time 300 -o "$1" "$url" ;;
    *)
      echo "fray: fray-package must be the gs:// or https:// URL of a wheel of Fray, followed by #sha256=HASH"
      return 1
      ;;
  esac
  echo "$sum  $1" | sha256sum --check --quiet -
}

install_agent() {
  local url wheel
  id fray >/dev/null 2>&1 || useradd --system --create-home --shell /usr/sbin/nologin fray
  if ! [ -x "$HOME_DIR/bin/fray" ]; then
    command -v uv >/dev/null || curl -fsSL --retry 5 "$INSTALLER" | env UV_INSTALL_DIR=/usr/local/bin sh
    UV_PYTHON_INSTALL_DIR="$HOME_DIR-python" uv venv --quiet --clear --python 3.11 "$HOME_DIR"
    url="${package%%#sha256=*}"
    wheel="$HOME_DIR/${url##*/}"
    download_wheel "$wheel"
    uv pip install --quiet --python "$HOME_DIR/bin/python" "${wheel}[agent,gcs,google,s3]"
  fi
  mkdir -p "$UNITS/fray-agent.service.d"
  cp "$("$HOME_DIR/bin/python" -c 'from fray_agents.deploy import UNIT; print(UNIT)')" "$UNITS/fray-agent.service"
  printf '[Service]\nEnvironment="FRAY_CLUSTER_SPEC=%s"\n' "$root" >"$UNITS/fray-agent.service.d/cluster.conf"
  systemctl daemon-reload
  systemctl enable fray-agent
  systemctl start fray-agent
}

# The container sees the host's processes (--pid), because the agent looks for those that hold its chips.
run_container() {
  docker rm --force fray-agent >/dev/null 2>&1 || true
  docker run --detach --name fray-agent --restart on-failure --stop-timeout 45 --privileged --network host \
    --pid host --env "FRAY_CLUSTER_SPEC=$root" "$image" agent
}

mkdir -p "$(dirname "$LOG")"
exec 3>&1 >"$LOG" 2>&1
trap 'ended $?' EXIT

root="$(metadata attributes/fray-root)"
package="$(attribute fray-package)"
image="$(attribute fray-image)"
if [ -n "$image" ]; then run_container; else install_agent; fi
echo "fray: the agent of $root was started"

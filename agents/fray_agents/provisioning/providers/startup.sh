#!/bin/bash
# Start-up of a host that was made for a pool: it installs Fray and runs the agent, which reads the rest from the metadata.
# It runs at each boot, as root. If it fails, what it said is stored beside the machine's record.
set -euo pipefail

home="${FRAY_HOME:-/opt/fray}"
log="${FRAY_BOOT_LOG:-/var/log/fray-boot.log}"

attribute() {
    curl --silent --fail --header 'Metadata-Flavor: Google' \
        "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/$1"
}

# A request for several slices names all of their machines: a node is the one at the number that ends its name.
machine() {
    local names node
    if attribute fray-machine; then return; fi
    IFS=, read -r -a names <<<"$(attribute fray-machines)"
    node="$(attribute instance-id)"
    echo "${names[${node##*-}]}"
}

tell() {
    local worker
    worker="$(attribute agent-worker-number || echo 0)"
    gcloud storage cp "$log" "$root/machines/$(attribute fray-pool)/$(machine)/boot-$worker.log"
}

root="$(attribute fray-root)"
exec >"$log" 2>&1
trap 'tell' ERR

if image="$(attribute fray-image)"; then
    start=(docker run --rm --name fray-agent --privileged --network host "$image" fray)
else
    python3 -m venv "$home"
    "$home/bin/pip" install --quiet "fray-cluster[agent,gcs]"
    start=("$home/bin/fray")
fi
systemctl is-active --quiet fray-agent ||
    systemd-run --unit fray-agent --property Restart=on-failure --property RestartSec=5 \
        "${start[@]}" agent --root "$root"

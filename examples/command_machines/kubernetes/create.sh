#!/bin/sh
# A machine is a pod that runs an agent. What is applied again stays as it is.
set -eu
here=$(dirname "$0")
export FRAY_NAME FRAY_CLUSTER FRAY_POOL FRAY_MACHINE FRAY_AGENT
FRAY_AGENT=$(printf %s "$FRAY_AGENT" | sed 's/\\/\\\\/g; s/"/\\"/g') # as it stands between quotes in YAML
python3 -c 'import os, string, sys; print(string.Template(open(sys.argv[1]).read()).substitute(os.environ))' \
    "$here/pod.yaml" | kubectl apply --filename -

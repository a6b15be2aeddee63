#!/bin/sh
# A machine is a pod that runs an agent. Applying the same manifest again changes nothing.
set -eu
here=$(dirname "$0")
export FRAY_NAME FRAY_CLUSTER FRAY_POOL FRAY_MACHINE FRAY_AGENT
FRAY_AGENT=$(printf %s "$FRAY_AGENT" | sed 's/\\/\\\\/g; s/"/\\"/g') # escaped for a quoted string in YAML
python3 -c 'import os, string, sys; print(string.Template(open(sys.argv[1]).read()).substitute(os.environ))' \
    "$here/pod.yaml" | kubectl apply --filename -

#!/bin/sh
# The pod has the grace of its manifest to end; nobody waits for it here.
set -eu
exec kubectl delete pod "$FRAY_NAME" --ignore-not-found --wait=false

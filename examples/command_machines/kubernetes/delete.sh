#!/bin/sh
# The pod has its manifest's grace to end; this does not wait for it.
set -eu
exec kubectl delete pod "$FRAY_NAME" --ignore-not-found --wait=false

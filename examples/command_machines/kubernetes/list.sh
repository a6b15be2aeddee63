#!/bin/sh
# Pods of this cluster and pool. A pod whose agent has left by itself does not count.
set -eu
pods=$(kubectl get pods --selector "fray-cluster=$FRAY_CLUSTER,fray-pool=$FRAY_POOL" --no-headers \
    --output custom-columns=NAME:.metadata.name,PHASE:.status.phase,END:.metadata.deletionTimestamp)
echo "$pods" | while read -r name phase end; do
    case $phase in
        Pending) state=creating ;;
        Running) state=ready ;;
        Succeeded | "") continue ;;
        *) state=lost ;;
    esac
    if [ "$end" != "<none>" ]; then state=ending; fi
    printf '{"name": "%s", "state": "%s"}\n' "$name" "$state"
done

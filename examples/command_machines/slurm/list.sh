#!/bin/sh
# All jobs of this user; Fray knows its own by their names. States: slurm.schedmd.com/job_state_codes.html
set -eu
jobs=$(squeue --me --noheader --states all --format "%j %T")
echo "$jobs" | while read -r name state; do
    case $name in "$FRAY_PREFIX"*) ;; *) continue ;; esac
    case $state in
        PENDING | REQUEUED) state=waiting ;;
        CONFIGURING | SUSPENDED) state=creating ;;
        RUNNING | RESIZING | SIGNALING | STAGE_OUT) state=ready ;;
        COMPLETING) state=ending ;;
        COMPLETED | CANCELLED) continue ;;
        *) error=$state state=lost ;;
    esac
    printf '{"name": "%s", "state": "%s", "error": "%s"}\n' "$name" "$state" "${error:-}"
    error=
done

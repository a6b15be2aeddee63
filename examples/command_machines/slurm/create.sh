#!/bin/sh
# A machine is a Slurm job that runs an agent. The dependency makes only the first of two jobs with one name start.
set -eu
if [ -n "$(squeue --me --noheader --name "$FRAY_NAME" --format %i)" ]; then exit 0; fi
if ! said=$(sbatch --parsable --job-name "$FRAY_NAME" --dependency singleton --partition "${FRAY_ZONE:-batch}" \
    --signal B:TERM@60 --wrap "exec $FRAY_AGENT" 2>&1 >/dev/null); then
    echo "$said" >&2
    case $said in # the words of src/common/slurm_errno.c
        *"accounting/QOS policy"*) exit 73 ;;                                       # quota
        *"permission denied"* | *"not permitted"* | *"Invalid account"*) exit 77 ;; # denied
        *"partition not available"* | *"DOWN state"*) exit 69 ;;                    # stockout
        *"nvalid partition"* | *"not available"* | *"than permitted"*) exit 78 ;;   # invalid
        *) exit 1 ;;
    esac
fi

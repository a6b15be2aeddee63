#!/bin/sh
# Slurm sends SIGTERM first, so the agent lets its jobs end. A name that is not there is no error.
set -eu
exec scancel --me --name "$FRAY_NAME"

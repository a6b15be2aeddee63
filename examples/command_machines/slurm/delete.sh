#!/bin/sh
# Slurm sends SIGTERM first, so the agent lets its jobs end. An unknown name is no error.
set -eu
exec scancel --me --name "$FRAY_NAME"

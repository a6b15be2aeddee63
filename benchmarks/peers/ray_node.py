"""A Ray on this machine with the given number of cores, until its input is closed. It prints its address first."""

from __future__ import annotations

import json
import sys

from ray_side import answers, running

OBJECT_STORE_BYTES = 200 * 1024**2
"""Bytes of its object store; the stored objects are small."""


def main() -> None:
    out = answers()
    resources = {"head_node": 1}  # Zephyr's coordinator runs there
    with running(num_cpus=int(sys.argv[1]), resources=resources, object_store_memory=OBJECT_STORE_BYTES) as head:
        print(json.dumps({"address": head.address_info["gcs_address"]}), file=out, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

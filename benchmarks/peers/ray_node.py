"""A Ray of this machine alone, with so many cores, until its input is closed; its first line has its address."""

from __future__ import annotations

import json
import sys

from ray_side import answers, running

OBJECT_STORE_BYTES = 200 * 1024**2
"""Bytes of its object store: what is stored is small."""


def main() -> None:
    out = answers()
    resources = {"head_node": 1}  # where Zephyr has its coordinator
    with running(num_cpus=int(sys.argv[1]), resources=resources, object_store_memory=OBJECT_STORE_BYTES) as head:
        print(json.dumps({"address": head.address_info["gcs_address"]}), file=out, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

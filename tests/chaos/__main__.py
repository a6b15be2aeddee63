"""`python -m tests.chaos --root-kind local|s3|moto|gcs --seconds N --jobs N --agents N --seed N --beat S`."""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.roots import KINDS
from tests.chaos.run import Options, run


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a cluster of real processes under havoc, and check its promises.")
    parser.add_argument("--root-kind", choices=list(KINDS), default="local")
    parser.add_argument("--seconds", type=float, default=180, help="of havoc")
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--beat", type=float, default=1.5, help="seconds between heartbeats")
    parser.add_argument("--folder", type=Path, help="an empty folder, which is kept; by default a temporary one")
    given = parser.parse_args()
    options = Options(given.root_kind, given.seconds, given.jobs, given.agents, given.seed, given.beat)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # sys.exit also ends the agents
    with tempfile.TemporaryDirectory(prefix="fray-chaos-") as folder:
        report = run(options, given.folder or Path(folder))
    print(report)
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())

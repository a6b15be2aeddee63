"""Runs a command again and again beside busy loops, and says how often it was green: `make test-stress`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time


def main() -> int:
    """The exit code: 1 if a round was red."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int)
    parser.add_argument("loops", type=int, help="processes that do nothing but use a core")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(given.loops)]
    red = 0
    try:
        for number in range(1, given.rounds + 1):
            began = time.monotonic()
            red += (failed := subprocess.run(given.command, check=False).returncode != 0)
            said = f"round {number} of {given.rounds} beside {given.loops} busy loops: {'red' if failed else 'green'}"
            print(f"{said} after {time.monotonic() - began:.0f} s", flush=True)
    finally:
        for loop in busy:
            loop.kill()
            loop.wait()
    print(f"{given.rounds - red} of {given.rounds} rounds were green")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())

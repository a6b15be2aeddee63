"""Actor calls, compared with Ray and Dask: one at a time, thousands in flight, large arrays, coroutines.

All sides run at once and take turns, so that all have the same machine; while one measures, the others only wait. Every
figure is the median of its rounds; a ratio is that of the medians. Fray authenticates every request and reply; the
peers do not, and Dask does not keep the order of calls in flight. Arrays: MB/s of a call that sends one and gets a
number.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from typing import Any

from callsteps import floors, steps_us
from harness import HERE, PYTHON, Helper, arguments, report, say

ROUNDS = 5
SECONDS = ("sync_us", "async_us", "hundred_s")  # for these, less is better
RATES = ("in_flight_per_s", "mb1_per_s", "mb10_per_s")

_MEMORY = """
import os
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
bare = resident()
from fray_rpc import RpcKey, RpcServer, Target, connect
class Keys:
    encrypted = False
    def keys(self, fresh=False):
        return [RpcKey("bench", bytes(range(32)))]
class Subject:
    def memory(self):
        return resident()
server = RpcServer(Keys())
server.add("subject", Subject())
server.start()
print(server.address, server.identity, bare, flush=True)
input()
"""


def memory_mb() -> dict[str, float]:
    """Memory of a process that only serves an object: all of it, and the interpreter's share."""
    from fray_actors import Keys

    from fray_rpc import Target, connect

    server = subprocess.Popen([PYTHON, "-c", _MEMORY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address, identity, bare = server.stdout.readline().split()
    channel = connect(Target("subject", address, "", identity), Keys())
    for _ in range(1000):
        channel.call("subject", "memory", (), {})
    whole = channel.call("subject", "memory", (), {})
    server.communicate("\n")
    return {"server": round(whole, 1), "interpreter": round(float(bare), 1)}


def rounds(sides: dict[str, Helper], count: int) -> dict[str, dict[str, float | None]]:
    """Run the rounds; return the median of each measurement for each side."""
    found: dict[str, dict[str, float | None]] = {name: {} for name in sides}
    for measurement in (*SECONDS, *RATES):
        samples: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(count):
            for name, side in sides.items():
                if (figure := side.ask(measurement)) is not None:
                    samples[name].append(figure)
        for name, figures in samples.items():
            found[name][measurement] = round(statistics.median(figures), 3) if figures else None
        say(f"{measurement}: " + ", ".join(f"{name} {found[name][measurement]}" for name in sides))
    return found


def ratios(ours: dict[str, float | None], theirs: dict[str, float | None]) -> dict[str, float]:
    """Fray's figure divided by the peer's, for measurements that both have."""
    return {key: round(ours[key] / theirs[key], 3) for key in ours if ours[key] and theirs[key]}  # type: ignore[operator]


def main() -> None:
    args = arguments(__doc__ or "", peers=("ray", "dask"))
    quick = ["--quick"] if args.quick else []
    commands = {
        "fray_tcp": [PYTHON, str(HERE / "peers/fray_actors.py"), "tcp"],
        "fray_unix": [PYTHON, str(HERE / "peers/fray_actors.py"), "unix"],
    }
    for peer in ("ray", "dask"):
        if getattr(args, peer):
            commands[peer] = [getattr(args, peer), str(HERE / f"peers/{peer}_actors.py")]
    figures: dict[str, Any] = {}
    with contextlib.ExitStack() as ending:
        sides: dict[str, Helper] = {}
        for name, command in commands.items():
            sides[name] = Helper([*command, *quick])
            ending.callback(sides[name].close)
        figures["versions"] = {name: side.greeting["version"] for name, side in sides.items() if side.greeting}
        figures["calls"] = rounds(sides, 1 if args.quick else ROUNDS)
    for peer in ("ray", "dask"):
        if peer in sides:
            for own in ("fray_tcp", "fray_unix"):
                figures[f"{own}_by_{peer}"] = ratios(figures["calls"][own], figures["calls"][peer])
    figures["memory_mb"] = memory_mb()
    figures["steps_us"] = steps_us(500 if args.quick else 20_000)
    figures["floors"] = floors(100 if args.quick else 1000)
    # Creation: the time from `create_actor` to the first answer is measured by the layer that creates them.
    report("actors", figures)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE / "peers"))
    main()

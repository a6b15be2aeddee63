"""The demo: a cluster of two machines in a temporary directory measures Python's standard library; one is killed.

A controller job splits the library's source into shards and launches a job for each; a last job reduces their results
to a ranking and a plot. In the middle of the shards one of the two agents gets SIGKILL, and the work finishes anyway.
The processes are connected only by files: every message between them is an object under one root.

    make demo
    ray job submit --working-dir examples -- python demo/main.py    # on a node of Ray: it starts its own agents
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from follow import Death, follow
from jobs import CONTROLLER, Reduced, Survey, survey
from machines import Machine, machines
from msgspec.structs import replace
from ranking import Ranking
from screen import Screen

from fray import Entrypoint, JobRequest, StorageCluster, sync
from fray_coordinator.core import LOCAL_SETTINGS, Core, open_core
from fray_coordinator.jobs.lookup import read_agents
from fray_coordinator.store.metering import GCS_PRICES, RequestCounts

SETTINGS = replace(LOCAL_SETTINGS, beat_interval=1.0, idle_beat_interval=1.0, pass_interval=0.5, repair_interval=3.0)
"""A heartbeat every second, so that a death is noticed within seconds; the usual interval is five seconds."""

RANKED = 12


def main(shards: int, files: int | None, output: Path) -> None:
    """Run the demo; write the plot to `output`."""
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="fray-demo-") as place:
        root = (Path(place) / "root").as_uri()
        core = sync.run(open_core(root, SETTINGS))
        with machines(["north", "south"], root, Path(place)) as both, StorageCluster(root) as cluster:
            screen.say(f"two agents serve {root}")
            begun = time.monotonic()
            entrypoint = Entrypoint.from_callable(survey, args=(shards, files))
            controller = cluster.launch(JobRequest("survey", entrypoint, CONTROLLER))
            with screen:
                death = follow(cluster, controller, both, screen)
            done: Survey = cluster.result(controller)
            reduced: Reduced = cluster.result(done.reduction)
            took = time.monotonic() - begun
            for machine in both:
                machine.leave()
            spent = {"the controller job": done.requests, "the reduction job": reduced.requests}
            spent |= sync.run(of_agents(core, both, death))
            spent["this program"] = cluster.requests() + core.store.usage
        sync.run(core.store.close())
    output.mkdir(parents=True, exist_ok=True)
    plot = output / "standard-library.png"
    plot.write_bytes(reduced.picture)
    show_ranking(screen, reduced.ranking)
    show_times(screen, done, death, took)
    show_bill(screen, spent)
    screen.console.print(f"The plot is in {plot.resolve()}", soft_wrap=True)


async def of_agents(core: Core, both: Sequence[Machine], death: Death) -> dict[str, RequestCounts]:
    """The requests of each agent at its last heartbeat; the last second of the killed one is missing."""
    records = {agent.record.id: agent.record for agent in await read_agents(core, problems={})}
    names = {m.id: f"agent {m.name}" + (", until its last heartbeat" if m is death.machine else "") for m in both}
    return {name: RequestCounts(**records[agent].requests) for agent, name in names.items()}


def show_ranking(screen: Screen, ranking: Ranking) -> None:
    rows = [
        (
            f"{place:2}. {package.name}",
            f"{package.modules:,}",
            f"{package.tokens:,}",
            f"{package.functions:,}",
            f"{package.coverage:.0%}",
            f"{len(package.imports):,}",
        )
        for place, package in enumerate(ranking.packages[:RANKED], 1)
    ]
    screen.table("The largest packages", ("package", "modules", "tokens", "functions", "documented", "imports"), rows)
    screen.console.print(
        f"{ranking.modules:,} modules with {ranking.tokens:,} tokens were measured; the {ranking.test_modules:,} in "
        f"test suites are not ranked. Files that do not parse: {len(ranking.unparsed)}"
        + (f" ({', '.join(ranking.unparsed)})." if ranking.unparsed else "."),
        style="dim",
    )


def show_times(screen: Screen, done: Survey, death: Death, took: float) -> None:
    noticed = "-" if death.noticed is None else f"{death.noticed:.1f} s"
    reduction = took - done.split_seconds - done.shards_seconds
    rows = [
        (f"splitting {done.files:,} files", f"{done.split_seconds:.1f} s"),
        ("measuring the shards", f"{done.shards_seconds:.1f} s"),
        (f"  of it until {death.machine.name}'s death was noticed", noticed),
        ("starting the controller, reducing, fetching", f"{reduction:.1f} s"),
        ("in all", f"{took:.1f} s"),
    ]
    screen.table("Time", ("part", "took"), rows)


def show_bill(screen: Screen, spent: dict[str, RequestCounts]) -> None:
    everyone = {**spent, "in all": sum(spent.values(), RequestCounts())}
    rows = [
        (who, f"{u.writes:,}", f"{u.lists:,}", f"{u.reads:,}", f"{u.deletes:,}", f"${u.cost(GCS_PRICES):.4f}")
        for who, u in everyone.items()
    ]
    screen.table("Storage requests, and what they would have cost", _BILL, rows)


_BILL = ("", "writes", "lists", "reads", "deletes", "on GCS")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=32, help="jobs to split the library into")
    parser.add_argument("--files", type=int, help="measure only the largest so many files")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="where the plot goes")
    options = parser.parse_args()
    main(options.shards, options.files, options.output)

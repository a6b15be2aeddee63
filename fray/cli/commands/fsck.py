"""`fray fsck`: find inconsistent records, explain them, and repair them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray_layouts.escaping import one_line

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_coordinator.fsck import Problem


@as_command
@click.option("--repair", is_flag=True, help="Repair what can be repaired, then check again.")
def command(app: App, repair: bool) -> None:
    """Check all records of the cluster and explain what is inconsistent; exit code 1 if something is left.

    You need not stop agents: fsck reads again what looks inconsistent, and gives agents time to repair what they can.
    --repair does what agents do at their repair interval, and removes or rebuilds objects that are derived from the
    records. Unreadable objects on which nothing that runs depends are moved to aside/, and can be moved back. It
    changes nothing else, and is safe while agents run.
    """
    problems = app.run(lambda core: _run(core, repair))
    app.show([asdict(problem) for problem in problems], lambda: _print_problems(problems))
    sys.exit(bool(problems))


def _print_problems(problems: list[Problem]) -> None:
    for problem in problems:
        output.echo(f"{one_line(problem.key)}\n    {problem.what}; {problem.remedy}")
    output.echo({0: "no problems", 1: "1 problem"}.get(len(problems), f"{len(problems)} problems"))


async def _run(core: Core, repair: bool) -> list[Problem]:
    from fray_coordinator import fsck

    for moved in await fsck.repair(core) if repair else ():
        remedy = f"mend it and move it back to {one_line(moved.key)}, or remove it"
        output.echo(f"{one_line(moved.key)} is set aside as {one_line(moved.to)}; {remedy}", err=True)
    return await fsck.check(core)

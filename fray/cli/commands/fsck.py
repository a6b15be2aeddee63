"""`fray fsck`: inconsistencies, in words, and their repair."""

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
@click.option("--repair", is_flag=True, help="Repair what can be repaired, then look again.")
def command(app: App, repair: bool) -> None:
    """Read the whole cluster and explain what does not fit together; exit code 1 if something is left.

    Agents need not be stopped: what looks odd is read again, and what agents put right by themselves is given its time.
    --repair does what they do on their repair interval, and removes or makes again what is derived from the records. It
    is safe while they run, and touches nothing else.
    """
    troubles = app.run(lambda core: _run(core, repair))
    app.show([asdict(problem) for problem in troubles], lambda: _tell(troubles))
    sys.exit(bool(troubles))


def _tell(troubles: list[Problem]) -> None:
    for problem in troubles:
        output.echo(f"{one_line(problem.key)}\n    {problem.what}; {problem.remedy}")
    output.echo(f"{len(troubles)} troubles" if troubles else "everything fits together")


async def _run(core: Core, repair: bool) -> list[Problem]:
    from fray_coordinator import fsck

    if repair:
        await fsck.repair(core)
    return await fsck.check(core)

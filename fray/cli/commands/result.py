"""`fray result`: print what a job returned."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray_layouts.errors import Permanent
from fray_layouts.escaping import escaped_bytes

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.records import JobResult


class NotSucceeded(Permanent):
    """The job has not succeeded, so it has no result."""


@as_command
@click.option("--replica", type=int, metavar="N", help="Replica of a gang whose result to print; 0 by default.")
@click.argument("job")
def command(app: App, job: str, replica: int | None) -> None:
    """Print what JOB returned: JSON as JSON, bytes as they are, anything else as Python's repr.

    On a terminal, control characters in bytes are escaped.
    """
    from fray.cluster.job_info import decode_result

    result, data = app.run(lambda core: _fetch(core, job, replica))
    value = decode_result(result, data)
    if app.json:
        output.print_json({"encoding": result.encoding, "value": _as_json(value)})
    elif result.encoding == "json":
        output.print_json(value, one_line=True)
    elif result.encoding == "bytes":
        click.echo(escaped_bytes(data) if sys.stdout.isatty() else data, nl=False)
    else:
        output.echo(repr(value))


def _as_json(value: Any) -> Any:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


async def _fetch(core: Core, text: str, replica: int | None) -> tuple[JobResult, bytes]:
    from fray.cluster.job_info import exit_reason, fetch_result
    from fray_coordinator.jobs.lookup import find_job
    from fray_coordinator.protocol.transitions import Status

    job = (await find_job(core, text)).record
    if job.ended_at is None:
        raise NotSucceeded(f"job {job.id} has not ended; it is {job.status}. `fray logs -f {job.id}` waits for its end")
    if job.status != Status.SUCCEEDED:
        raise NotSucceeded(f"job {job.id} {job.status}: {exit_reason(job.exit) if job.exit else 'it left no reason'}")
    return await fetch_result(core, job, replica)

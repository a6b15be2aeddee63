"""`fray actors`: list the actors and their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fray.cli import output
from fray.cli.app import App, as_command
from fray_layouts.units import format_duration

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.records import EndpointRecord

_COLUMNS = ("ACTOR", "NAMESPACE", "ADDRESS", "JOB", "INCARNATION", "ATTEMPT", "AGE")


@as_command
def command(app: App) -> None:
    """List the actors that can be called."""
    problems: dict[str, str] = {}
    found, now = app.run(lambda core: _find(core, problems))
    app.warn(problems)
    data = [_json(endpoint) for endpoint in found]
    rows = [_row(endpoint, now) for endpoint in found]
    app.show(data, lambda: output.print_table(_COLUMNS, rows, "no actor can be called"))


async def _find(core: Core, problems: dict[str, str]) -> tuple[list[EndpointRecord], float]:
    from fray_coordinator.actors.naming import all_endpoints

    return await all_endpoints(core, problems), core.now()


def _json(endpoint: EndpointRecord) -> dict[str, Any]:
    from fray.cli.job_view import record_json

    return record_json(endpoint)


def _row(endpoint: EndpointRecord, now: float) -> tuple[str, ...]:
    return (
        endpoint.name,
        endpoint.namespace,
        endpoint.address,
        endpoint.job,
        str(endpoint.incarnation) if endpoint.incarnation else "",
        str(endpoint.attempt),
        format_duration(now - endpoint.published_at),
    )

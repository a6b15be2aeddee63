"""`fray reservations`: list reservations and launch groups, renew and release them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray_layouts.units import format_duration

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_layouts.records import ReservationRecord

_COLUMNS = ("RESERVATION", "NAMESPACE", "POOL", "STATE", "HAS", "LEAST", "MOST", "AGE", "ENDS IN", "ON")


@as_command
@click.option("--all", "-a", "everything", is_flag=True, help="Also reservations that have ended.")
@click.option("--renew", "renewed", metavar="ID", help="Renew a reservation: start its time again.")
@click.option("--release", "released", metavar="ID", help="Release a reservation: stop its jobs and end it.")
def command(app: App, everything: bool, renewed: str | None, released: str | None) -> None:
    """List reservations and launch groups, with their bundles and agents. --renew or --release changes one first."""
    problems: dict[str, str] = {}
    found, now = app.run(lambda core: _find(core, renewed, released, problems))
    app.warn(problems)
    shown = [record for record in found if everything or record.ended_at is None]
    data = [_json(record) for record in shown]
    empty = "there are no reservations" if everything else "nothing is reserved; --all also lists ended reservations"
    app.show(data, lambda: output.print_table(_COLUMNS, [_row(record, now) for record in shown], empty))


async def _find(
    core: Core, renewed: str | None, released: str | None, problems: dict[str, str]
) -> tuple[list[ReservationRecord], float]:
    from fray_coordinator.placements import reservations

    if renewed is not None:
        await reservations.renew(core, renewed)
    if released is not None:
        await reservations.release(core, released, "released by `fray reservations`")
    return await reservations.all_reservations(core, problems), core.now()


def _json(record: ReservationRecord) -> dict[str, Any]:
    from fray.cli.job_view import record_json

    return record_json(record)


def _row(record: ReservationRecord, now: float) -> tuple[str, ...]:
    members = record.placement.members if record.ended_at is None else []
    ends = record.expires_at
    return (
        record.id,
        record.namespace,
        record.pool,
        record.state,
        str(sum(len(member.bundles) for member in members)),
        str(record.low),
        str(sum(part.gang.count for part in record.parts)),
        format_duration(now - record.submitted_at),
        format_duration(max(ends - now, 0.0)) if ends is not None and record.ended_at is None else "",
        record.reason or ", ".join(dict.fromkeys(member.host or member.agent for member in members)),
    )

"""`fray doctor`: check whether a storage root can hold a cluster."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from fray.cli.app import App, as_command
from fray_layouts.escaping import escaped

if TYPE_CHECKING:
    from fray_coordinator.store.probe import Finding

_COLORS = {"ok": "green", "warning": "yellow", "error": "red"}
_WIDTH = max(map(len, _COLORS))


@as_command
@click.argument("at", required=False, metavar="[ROOT]")
def command(app: App, at: str | None) -> None:
    """Try out the storage under ROOT and say what is wrong with it. Exit code 1 if it cannot hold a cluster."""
    findings = asyncio.run(_check(App(at or app.given_root, app.json).root))
    app.show([asdict(finding) for finding in findings], lambda: _print_findings(findings))
    sys.exit(_has_error(findings))


async def _check(root: str) -> list[Finding]:
    """Check the storage and, if it is fit, the cluster in it, if there is one."""
    from fray_coordinator.fsck.job_checks import check_cluster
    from fray_coordinator.store.probe import probe

    findings = await probe(root)
    return findings if _has_error(findings) else [*findings, *await check_cluster(root)]


def _has_error(findings: list[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        severity = click.style(finding.severity.ljust(_WIDTH), _COLORS[finding.severity])
        click.echo(f"{severity}  {escaped(finding.what)}")
        if finding.remedy:
            click.echo(f"{' ' * (_WIDTH + 2)}{escaped(finding.remedy)}")

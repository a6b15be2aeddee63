"""`fray doctor`: can this storage carry a cluster."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict

import click

from fray.cli.app import App, as_command

_COLORS = {"ok": "green", "warning": "yellow", "error": "red"}


@as_command
@click.argument("at", required=False, metavar="[ROOT]")
def command(app: App, at: str | None) -> None:
    """Try out the storage under ROOT and say what is wrong with it; exit code 1 if a cluster cannot live there."""
    from fray_coordinator.store.probe import Finding, probe

    root = App(at or app.given_root, app.json).root
    findings = asyncio.run(probe(root))

    def tell() -> None:
        for finding in findings:
            _tell(finding)

    def _tell(finding: Finding) -> None:
        click.echo(f"{click.style(finding.severity.ljust(7), _COLORS[finding.severity])}  {finding.what}")
        if finding.remedy:
            click.echo(f"{' ' * 9}{finding.remedy}")

    app.show([asdict(finding) for finding in findings], tell)
    sys.exit(any(finding.severity == "error" for finding in findings))

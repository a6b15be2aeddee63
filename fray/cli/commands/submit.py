"""`fray submit`: submit jobs from a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.parsing import parse_json

if TYPE_CHECKING:
    from fray_coordinator.core import Core
    from fray_coordinator.jobs.submission import Submitted
    from fray_layouts.spec import JobSpec


@as_command
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
def command(app: App, file: str) -> None:
    """Submit the jobs that FILE (- for stdin) describes, in JSON or YAML. If one is wrong, none is submitted.

    A job with an "id" is submitted once: another submission with that id finds the first.
    """
    specs = read_specs(sys.stdin.read() if file == "-" else Path(file).read_text(errors="replace"))
    done = app.run(lambda core: _submit(core, specs), create=True)
    rows = [{"job": one.job.id, "found": one.found} for one in done]
    app.show(rows, lambda: output.print_ids([(o.job.id, "existed before" * o.found) for o in done], ("JOB", "")))


def read_specs(text: str) -> list[JobSpec]:
    """Parse and check the specs in a text. Raises InvalidInput, which names the job if there are several."""
    from fray_layouts.spec import parse_spec

    documents = _documents(text)
    specs = []
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict):
            raise InvalidInput(f"job {number}", document, "a job is an object with at least name and entrypoint")
        try:
            specs.append(parse_spec(document))
        except InvalidInput as error:
            where = f"job {number}: " if len(documents) > 1 else ""
            raise InvalidInput(f"{where}{error.field}", error.value, error.remedy) from None
    if not specs:
        raise InvalidInput("file", text[:100], "it holds no job")
    return specs


def _documents(text: str) -> list[Any]:
    try:
        documents = [parse_json(text)]
    except Malformed as not_json:
        documents = _yaml(text, not_json)
    return [job for document in documents for job in (document if isinstance(document, list) else [document])]


def _yaml(text: str, not_json: Malformed) -> list[Any]:
    import yaml

    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the latter from its own conversion of numbers
        why = f"neither JSON ({not_json}) nor YAML ({' '.join(str(error).split())})"
        raise InvalidInput("file", text[:100], f"it must hold jobs; it is {why}") from None


async def _submit(core: Core, specs: list[JobSpec]) -> list[Submitted]:
    from fray.cluster.submission import submit_from_command

    return await submit_from_command(core, specs)

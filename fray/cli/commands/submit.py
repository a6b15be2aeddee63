"""`fray submit`: submit jobs from a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.options import chosen_workspace, print_stored, workspace_options
from fray_layouts.errors import InvalidInput, Malformed
from fray_layouts.parsing import parse_json

if TYPE_CHECKING:
    from fray.workspace.choice import WorkspaceChoice
    from fray_layouts.spec import JobSpec


@as_command
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@workspace_options
def command(app: App, file: str, workspace: str | None, no_workspace: bool) -> None:
    """Submit the jobs that FILE (- for stdin) describes, in JSON or YAML. If one is wrong, none is submitted.

    A job with an "id" is submitted once: another submission with that id finds the first. "environment.workspace" is
    the folder that the job gets a copy of, relative to that of FILE; null is for no folder. Other jobs get the project
    around the current directory.
    """
    from fray.cluster.launching import submit_from_command

    otherwise = chosen_workspace(workspace, no_workspace)
    jobs = read_jobs(sys.stdin.read() if file == "-" else Path(file).read_text(errors="replace"))
    folder = Path() if file == "-" else Path(file).parent
    specs = [job.spec for job in jobs]
    choices = [_workspace_of(job, folder, otherwise) for job in jobs]
    done = app.run(lambda core: submit_from_command(core, specs, choices, print_stored), create=True)
    rows = [{"job": one.job.id, "found": one.found} for one in done]
    app.show(rows, lambda: output.print_ids([(o.job.id, "existed before" * o.found) for o in done], ("JOB", "")))


class WrittenJob(NamedTuple):
    """A job of a file. folder: the workspace that it names; None if it names none, "" if there is none to pack."""

    spec: JobSpec
    folder: str | None


def read_jobs(text: str) -> list[WrittenJob]:
    """Parse and check the jobs in a text. Raises InvalidInput, which names the job if there are several."""
    documents = _documents(text)
    jobs = []
    for number, document in enumerate(documents, 1):
        if not isinstance(document, dict):
            raise InvalidInput(f"job {number}", document, "write an object with at least name and entrypoint")
        try:
            jobs.append(_read_job(document))
        except InvalidInput as error:
            where = f"job {number}: " if len(documents) > 1 else ""
            raise InvalidInput(f"{where}{error.field}", error.value, error.remedy) from None
    if not jobs:
        raise InvalidInput("file", text[:100], "it has no job; write at least one")
    return jobs


def _read_job(document: dict[str, Any]) -> WrittenJob:
    environment = document.get("environment")
    if not isinstance(environment, dict) or "workspace" not in environment:
        return WrittenJob(_checked_spec(document), None)
    folder = environment["workspace"]
    if not isinstance(folder, str):
        return WrittenJob(_checked_spec(document), "")
    others = {name: value for name, value in environment.items() if name != "workspace"}
    return WrittenJob(_checked_spec({**document, "environment": others}), folder)


def _checked_spec(document: dict[str, Any]) -> JobSpec:
    from fray_layouts.spec_parsing import check_whole_slices, parse_spec

    spec = parse_spec(document)
    check_whole_slices(spec)
    return spec


def _workspace_of(job: WrittenJob, base: Path, otherwise: WorkspaceChoice | None) -> WorkspaceChoice | None:
    """The workspace of a job in a file of the folder `base`."""
    from fray.workspace.choice import named_workspace

    return otherwise if job.folder is None else named_workspace(job.folder, base)


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
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # yaml's conversion of numbers raises the last two
        why = f"neither JSON ({not_json}) nor YAML ({' '.join(str(error).split())})"
        raise InvalidInput("file", text[:100], f"write jobs in JSON or YAML; it is {why}") from None

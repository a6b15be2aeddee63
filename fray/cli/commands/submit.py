"""`fray submit`: submit jobs from a file."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.options import chosen_workspace, print_stored, workspace_options
from fray.written_files import naming, read_documents
from fray_layouts.errors import InvalidInput
from fray_layouts.parsing import REDACTED

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
    if file == "-":
        jobs = read_jobs(sys.stdin.read(), "standard input")
    else:
        jobs = read_jobs(Path(file).read_text(errors="replace"), file)
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


def read_jobs(text: str, file: str) -> list[WrittenJob]:
    """Parse and check the jobs in a file's text. Raises InvalidInput, which names the file and the job."""
    documents = read_documents(text, file)
    written = [job for document in documents for job in (document if isinstance(document, list) else [document])]
    jobs = []
    with naming(file):
        if not written:
            raise InvalidInput("jobs", None, "it has no job; write at least one")
        for number, document in enumerate(written, 1):
            with naming(f"job {number}") if len(written) > 1 else nullcontext():
                jobs.append(_read_job(document))
    return jobs


def _read_job(document: Any) -> WrittenJob:
    if not isinstance(document, dict):
        raise InvalidInput("job", REDACTED, "write an object with at least name and entrypoint")
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

"""`fray run`: submit a command, and follow its output to its end."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from fray.cli import output
from fray.cli.app import App, as_command
from fray.cli.command_words import Sent, missing_files
from fray.cli.job_options import job_options, spec_of
from fray.cli.options import chosen_workspace, piped_input, print_stored, workspace_options
from fray.cli.output import LinePrinter
from fray_runtime.variables import read_variable

if TYPE_CHECKING:
    from fray.workspace.choice import WorkspaceChoice
    from fray.workspace.upload import StoredWorkspace
    from fray_coordinator.core import Core
    from fray_layouts.records import JobRecord
    from fray_layouts.spec import JobSpec

_INTERACTIVE_PROGRAMS = {"bash", "sh", "zsh", "fish", "python", "python3", "ipython"}
"""Programs that are interactive when they have no arguments."""

_EXIT_STOPPED = 130
"""The exit code of shells for a program that Ctrl-C ended."""


def _refuse_terminal(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    if given:
        raise click.UsageError(
            "a job has no terminal, because it runs on another host, perhaps later, perhaps more than once. Standard "
            "input goes to the job (`fray run -- cat < FILE`), and its output is shown here; for a shell on a host, "
            "log in there"
        )


@as_command
@click.option(
    "-i", "-t", "--interactive", "--tty", is_flag=True, hidden=True, expose_value=False, callback=_refuse_terminal
)
@job_options
@workspace_options
@click.option("--simulate", is_flag=True, help="On a private cluster: run without what this machine lacks.")
@click.option("--detach", "-d", is_flag=True, help="Print the job's id and return.")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
def command(
    app: App, words: tuple[str, ...], detach: bool, workspace: str | None, no_workspace: bool, **options: Any
) -> None:
    """Submit COMMAND as a job and follow it. Its output is printed byte for byte, and its exit code is returned.

    For example: fray run --gpus 1 --retries 3 --output 'out/**' -- python -m trainer --steps 1000

    Standard input, if it is not a terminal, is read to its end before the job is submitted; each attempt of the job
    reads it from its start.

    In a project (the nearest folder with pyproject.toml, uv.lock or .git, else with requirements.txt), the job starts
    in a copy of the project, with its packages.

    Ctrl-C asks whether to stop the job or to leave it running; without a terminal it stops the job.

    Without a root, the job runs on a private cluster that ends with this command, in the current directory, with the
    packages that are installed here. Ctrl-C stops the job, and a second one kills it.
    """
    if os.isatty(0) and words[0] in _INTERACTIVE_PROGRAMS and len(words) == 1:
        raise click.UsageError(f"{words[0]} without arguments needs a terminal, and a job has none; give it a script")
    from fray.cluster.backends import is_private_root

    spec = spec_of(words, options)
    _hint_at_secrets(options["env"])
    choice = chosen_workspace(workspace, no_workspace)
    if not app.given_root or is_private_root(app.given_root):
        _refuse_on_private_cluster(detach, {"workspace": workspace, **options})
        sys.exit(_run_on_private_cluster(app, spec, options["simulate"], piped_input()))
    if options["simulate"]:
        raise click.UsageError("the agents of a shared cluster have what they say; leave --simulate out")
    stdin = piped_input()
    job = app.run(lambda core: _submit(core, spec, choice, stdin), create=True)
    if detach:
        app.show({"job": job}, lambda: output.echo(job))
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: _exit_on_sigterm(job))
    try:
        output.echo(f"fray: job {job}", err=True)
        code = app.run(lambda core: follow(core, app, job))
    except KeyboardInterrupt:
        code = _interrupted(app, job)
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(code)


_SECRET = re.compile(r"(^|_)(API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)($|_)", re.IGNORECASE)
"""Matches names of variables whose values are mostly secret."""


def _hint_at_secrets(given: Iterable[str]) -> None:
    """Say which variables of --env have names of secrets. A path in them is none."""
    for text in given:
        name, _, value = text.partition("=")
        if _SECRET.search(name) and not (value or os.environ.get(name, "")).startswith("/"):
            output.echo(
                f"fray: the value of {name} can be read by all who look at this job; with --secret {name}[=VALUE] "
                "instead of -e no command shows it",
                err=True,
            )


async def _submit(core: Core, spec: JobSpec, choice: WorkspaceChoice | None, stdin: bytes) -> str:
    from msgspec.structs import replace

    from fray.cluster.launching import submit_from_command
    from fray_coordinator.jobs.submission import put_blob
    from fray_runtime.current_task import PRIVATE_VAR

    if stdin:
        spec = replace(spec, entrypoint=replace(spec.entrypoint, stdin=await put_blob(core, stdin)))
    is_private = bool(read_variable(PRIVATE_VAR))

    def on_stored(workspace: StoredWorkspace) -> None:
        print_stored(workspace)
        _warn_of_missing_files(spec, Sent(workspace.folder, workspace.names))

    if choice is None or is_private or choice.find() is None:
        _warn_of_missing_files(spec, None if choice is None or is_private else Sent(None))
    [submitted] = await submit_from_command(core, [spec], [choice], on_stored)
    if submitted.found:
        output.echo(f"fray: a job with the id {spec.id} was submitted before; this is it", err=True)
    return submitted.job.id


def _warn_of_missing_files(spec: JobSpec, sent: Sent | None) -> None:
    """Warn about the files that the command names and will not find. sent: None if it runs here, or if nobody asked."""
    for line in missing_files(spec.entrypoint.command, sent):
        output.echo(f"fray: {line}", err=True)


def _refuse_on_private_cluster(detach: bool, options: dict[str, Any]) -> None:
    """Raise UsageError for options that need a permanent cluster, or agents that prepare workspaces and packages."""
    if detach:
        raise click.UsageError("a private cluster ends with this command; give --root ROOT to leave a job running")
    for name in ("workspace", "extra", "group", "with", "image", "python"):
        if options[name]:
            raise click.UsageError(
                f"a private cluster runs in this folder, with the packages that are installed here; "
                f"leave --{name} out, or give --root ROOT"
            )


def _run_on_private_cluster(app: App, spec: JobSpec, simulate: bool, stdin: bytes) -> int:
    """Run the job on a private cluster in this process, remove all of it, and return the exit code."""
    from fray.cluster.current import private_options, why_private
    from fray.cluster.local_cluster import LocalCluster
    from fray.cluster.private_spec import private_spec
    from fray.types import JobId

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    if not app.given_root:
        output.echo(f"fray: {why_private(os.environ)}", err=True)
    simulate = simulate or private_options(app.given_root or "local")["simulate"]
    private = private_spec(spec, "simulated" if simulate else "real")
    with LocalCluster(max(4, os.cpu_count() or 1), simulate=simulate) as cluster:
        job = cluster.run(lambda core: _submit(core, private, None, stdin))
        output.echo(f"fray: job {job}", err=True)
        following = cluster.start(lambda core: follow(core, app, job))
        try:
            return following.result()
        except KeyboardInterrupt:
            output.echo(f"fray: stopping {job}", err=True)
            cluster.terminate(JobId(job))
            return following.result()


async def follow(core: Core, app: App, job_id: str) -> int:
    """Print the job's output until it has ended, and return the exit code for its end."""
    from contextlib import aclosing

    from fray.cli.job_view import job_json
    from fray.cluster.waiting_scaler import WaitingScaler
    from fray_coordinator.jobs.logs import follow_chunks
    from fray_coordinator.jobs.lookup import read_job
    from fray_layouts.spec import is_gang

    attempt = 1
    submitted = (await read_job(core, job_id)).record
    printer = LinePrinter(app.json, raw=True, merges=is_gang(submitted.spec))
    async with WaitingScaler(core).during_wait() as on_machines:
        followed = follow_chunks(core, job_id, on_waiting=_print_waiting, on_machines=on_machines)
        async with aclosing(followed) as chunks:
            async for chunk in chunks:
                if chunk[0].attempt != attempt:
                    attempt = chunk[0].attempt
                    output.echo(f"fray: attempt {attempt}", err=True)
                printer.print(chunk)
    printer.end()
    job = (await read_job(core, job_id)).record
    if app.json:
        output.print_json({"type": "job", **job_json(job)}, one_line=True)
    return _exit_code(job)


def _print_waiting(job: JobRecord, why: str) -> None:
    output.echo(f"fray: waiting: {why}", err=True)


def _exit_code(job: JobRecord) -> int:
    from fray.cluster.job_info import exit_reason
    from fray_coordinator.protocol.transitions import Status

    end = job.exit
    if job.status == Status.SUCCEEDED or end is None:
        return 0
    output.echo(f"fray: job {job.id} {job.status}: {exit_reason(end)}", err=True)
    if job.status == Status.STOPPED:
        return _EXIT_STOPPED
    return 128 + end.signal if end.signal else end.code or 1


def _exit_on_sigterm(job: str) -> NoReturn:
    """Exit on SIGTERM; the job keeps running without a follower."""
    output.echo(f"fray: {job} keeps running; `fray stop {job}` stops it", err=True)
    sys.exit(128 + signal.SIGTERM)


def _interrupted(app: App, job: str) -> int:
    from fray_coordinator.jobs import stopping

    try:
        stop = not sys.stdin.isatty() or click.confirm(f"\nfray: stop {job}? (no leaves it running)", err=True)
    except click.Abort:
        stop = False
    if stop:
        app.run(lambda core: stopping.stop(core, job, "Ctrl-C in fray run"))
        output.echo(f"fray: stopping {job}", err=True)
    else:
        output.echo(f"fray: {job} keeps running; `fray logs -f {job}` follows it", err=True)
    return _EXIT_STOPPED

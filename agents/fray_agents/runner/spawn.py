"""Starts the task: fork and exec, with every failure attributed to the host or to the job.

A callable's process may have been started before there is a call: it has the imports that most calls need, and waits.
"""

from __future__ import annotations

import errno
import json
import os
import signal

from fray_agents.runner.exit_report import BRING_FOLDER
from fray_agents.runner.process_tree import PR_SET_PDEATHSIG, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from fray_agents.runner.agent_pipe import StartRequest


class PrestartedProcess:
    """The waiting process, a child of this runner; its code is `fray_agents.tasks.callable_main.wait_for_call`."""

    def __init__(self, command: list[str], fork: Callable[[], int]) -> None:
        read, self._write = os.pipe()
        try:
            self._pid, self._out, self._err = spawn(command, dict(os.environ), os.getcwd(), read, fork)
        finally:
            os.close(read)

    def take(self, request: StartRequest) -> tuple[int, int, int] | None:
        """Pass it its call; returns what `spawn` returns, or None if the process has ended meanwhile."""
        call = {
            "directory": request.directory,
            "result_limit": request.result_limit,
            "env": request.env,
            "python_path": request.python_path,
            "cwd": request.start_directory,
        }
        try:
            with open(self._write, "wb") as file:
                file.write(json.dumps(call).encode() + b"\n")
        except BrokenPipeError:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            return None
        return self._pid, self._out, self._err


_HOST_ERRORS = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EIO)
"""Errors of exec that are the host's fault, not the program's."""

NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes, as a shell uses them."""

_SHELL_BUILTINS = ("cd", "export", "source", ".", "ulimit", "set", "exec", "eval")
_SHELL_CHARACTERS = " \t\n|;&<>$`*"
"""Signs that a program was written for a shell: its builtins, and characters that only it interprets."""

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that the runner ignores, because they are sent to whole process groups."""

_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ, *IGNORED, signal.SIGCHLD)
"""Signals whose handling a task must not inherit; Python itself ignores the first two."""


class NotExecutable(Exception):
    """The program cannot be executed, which is the job's failure. `code` is the exit code that a shell would use."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def spawn(
    command: list[str],
    env: dict[str, str],
    cwd: str,
    stdin: int,
    fork: Callable[[], int] = os.fork,
) -> tuple[int, int, int]:
    """Start `command` in a session of its own; it is killed when this process dies.

    Args:
        stdin: descriptor of its standard input.
        fork: creates the process, as `os.fork` does.

    Returns:
        Its pid, and the non-blocking read ends of its stdout and stderr.

    Raises:
        NotExecutable: there is no such program, or it is not executable.
        OSError: this host cannot start it now: no memory, no processes, no `cwd`.
    """
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    failure_read, failure_write = os.pipe()
    runner = os.getpid()
    pid = fork()
    if pid == 0:
        _exec_task(command, env, cwd, runner, stdin, out_write, err_write, failure_write)
    for fd in (out_write, err_write, failure_write):
        os.close(fd)
    with open(failure_read) as file:
        failure = file.read()
    if failure:
        os.waitpid(pid, 0)
        stage, _, number = failure.partition(" ")
        _raise_failure(stage, int(number), command, env, cwd)
    os.set_blocking(out_read, False)
    os.set_blocking(err_read, False)
    return pid, out_read, err_read


def _exec_task(
    command: list[str],
    env: dict[str, str],
    cwd: str,
    runner: int,
    stdin: int,
    out: int,
    err: int,
    failure: int,
) -> NoReturn:
    """Turn the fork into the task. Writes "<stage> <errno>" to `failure` if that fails."""
    stage = "setup"
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != runner:
            os._exit(1)  # the runner died before the line above
        signal.set_wakeup_fd(-1)
        for number in _RESTORED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(stdin, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        stage = "cwd"
        os.chdir(cwd)
        stage = "exec"
        os.execvpe(command[0], command, env)
    except OSError as error:
        os.write(failure, f"{stage} {error.errno}".encode())
    except ValueError:  # a null byte, or text that is not Unicode
        os.write(failure, f"{stage} {errno.EINVAL}".encode())
    finally:
        os._exit(NOT_FOUND)


_FIRST_LINE_BYTES = 256
"""What Linux reads of a script to find its interpreter."""


def _interpreter_trouble(path: str, program: str) -> str:
    """Why a program that exists has no interpreter here, with the remedy."""
    try:
        with open(path, "rb") as file:
            begin, line_end, _ = file.read(_FIRST_LINE_BYTES).partition(b"\n")
    except OSError:  # it may be executed and not read
        begin = line_end = b""
    if begin.startswith(b"#!") and line_end and begin.endswith(b"\r"):
        return (
            "has the line endings of Windows (CR LF), and there is no interpreter whose name ends in CR; convert it: "
            f"sed -i 's/\\r$//' {program}"
        )
    return "names an interpreter that is not on this host; install it there, or correct the program's first line"


def _raise_failure(stage: str, number: int, command: list[str], env: dict[str, str], cwd: str) -> NoReturn:
    reason, program = os.strerror(number), command[0]
    if stage != "exec" or number in _HOST_ERRORS:
        raise OSError(number, reason, cwd if stage == "cwd" else program)
    if number not in (errno.ENOENT, errno.ENOTDIR):
        raise NotExecutable(NOT_EXECUTABLE, f"program {program!r} cannot be executed: {reason}")
    places = [cwd] if "/" in program else env.get("PATH", os.defpath).split(":")
    there = (os.path.join(cwd, place, program) for place in places)
    if path := next(filter(os.path.exists, there), None):
        raise NotExecutable(NOT_FOUND, f"program {program!r} {_interpreter_trouble(path, program)}")
    place, remedy = "not found on this host", "install it there or give its full path"
    if "/" in program and not os.path.isabs(program):
        place = "is not in the folder where the job starts"
        remedy = BRING_FOLDER
    if program in _SHELL_BUILTINS or any(character in _SHELL_CHARACTERS for character in program):
        remedy = 'only a shell understands it: run ["sh", "-c", "..."]'
    raise NotExecutable(NOT_FOUND, f"program {program!r} {place}; {remedy}")

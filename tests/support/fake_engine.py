"""A container engine without containers, as a program: its processes are children of a daemon, like those of docker.

`install` writes it into a directory as `podman` or `docker`. `create` starts the daemon of a container, which waits for
`start`. The program then runs with the variables that a container would have, but without namespaces.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

INFO = {
    "podman": {
        "host": {
            "serviceIsRemote": False,
            "security": {"rootless": False},
            "cgroupVersion": "v1",
            "ociRuntime": {"name": "crun"},
        }
    },
    "docker": {"Name": os.uname().nodename, "SecurityOptions": []},
}


def install(folder: Path, name: str = "podman") -> Path:
    """Write the program into `folder`.

    `state/` there has a folder for each container, and the file `calls` with all calls.
    """
    (folder / "state").mkdir()
    program = folder / name
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {__file__} {folder}/state {name} "$@"\n')
    program.chmod(0o755)
    return program


def main(state: Path, name: str, verb: str, *arguments: str) -> int:
    with open(state / "calls", "a") as calls:
        calls.write(json.dumps([verb, *arguments]) + "\n")
    if (refusal := state / f"refuse-{verb}").exists():
        print(refusal.read_text(), file=sys.stderr)
        return 125
    match verb:
        case "info":
            print(json.dumps(INFO[name]))
        case "image":
            print('["PATH=/usr/local/bin:/usr/bin:/bin"]')
            return 0 if (state / "images" / arguments[-1].replace("/", "_")).exists() else 1
        case "pull":
            (state / "images").mkdir(exist_ok=True)
            (state / "images" / arguments[-1].replace("/", "_")).touch()
        case "create":
            create(state, list(arguments))
        case "daemon":
            daemon(state / arguments[0])
        case "start":
            return attach(state / arguments[-1])
        case "rm":
            remove(state / arguments[-1])
    return 0


def create(state: Path, arguments: list[str]) -> None:
    flags = []
    while arguments[0].startswith("--"):
        flags.append(arguments.pop(0).removeprefix("--").partition("=")[::2])
    values = dict(flags)
    lines = Path(values["env-file"]).read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines)
    env |= {value: os.environ[value] for name, value in flags if name == "env"}
    container = state / values["name"]
    container.mkdir()
    for pipe in ("go", "out", "err"):
        os.mkfifo(container / pipe)
    description = {"env": env, "cwd": values["workdir"], "command": arguments[1:]}
    (container / "made").write_text(json.dumps(description))
    engine = [sys.executable, "-I", "-S", __file__, str(state), "", "daemon", container.name]
    subprocess.Popen(engine, start_new_session=True, stdin=-3, stdout=-3, stderr=-3, env={})


def daemon(container: Path) -> None:
    """Wait for `start`, then run the program below an init that outlives it for a moment."""
    (container / "daemon").write_text(str(os.getpid()))
    open(container / "go").close()
    made = json.loads((container / "made").read_text())
    init = os.fork()
    if init:
        (container / "init").write_text(str(init))
        status = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
        (container / "code.part").write_text(str(status if status >= 0 else 128 - status))
        (container / "code.part").rename(container / "code")
        return
    program = (
        "import subprocess, sys; code = subprocess.call(sys.argv[1:]); sys.exit(code if code >= 0 else 128 - code)"
    )
    ignoring = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {program}"
    os.dup2(os.open(container / "out", os.O_WRONLY), 1)
    os.dup2(os.open(container / "err", os.O_WRONLY), 2)
    os.chdir(made["cwd"])
    # The program handles signals itself, as below a real init.
    restored = ["env", "--default-signal=TERM", *made["command"]]
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", ignoring, *restored], made["env"])


def attach(container: Path) -> int:
    go = os.open(container / "go", os.O_WRONLY)
    copies = [subprocess.Popen(["cat", container / pipe], stdout=fd) for fd, pipe in ((1, "out"), (2, "err"))]
    os.close(go)
    while not (container / "code").exists():
        time.sleep(0.01)
    for copy in copies:
        copy.wait()
    return int((container / "code").read_text())


def remove(container: Path) -> None:
    if (container / "daemon").exists():
        with contextlib.suppress(ProcessLookupError):  # the program has ended by itself
            os.killpg(int((container / "daemon").read_text()), signal.SIGKILL)
    if container.exists():
        container.rename(container.with_name(f"removed-{container.name}"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))

"""The program of the jobs in a chaos run: `job.py KIND SECONDS EFFECTS`.

An attempt records its work in files that it creates exclusively, under the job and the attempt. They show an attempt
that runs twice, and a result without its work. `~alive` holds the last moment at which the attempt ran. The replicas of
a gang, except for replica 0, use the job, `+` and their number.
Each kind imports only what it needs, because hundreds of these processes start on a machine with few cores.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

JOB, ATTEMPT = os.environ["FRAY_JOB_ID"], int(os.environ["FRAY_ATTEMPT"])
REPLICA, REPLICAS = int(os.environ["FRAY_REPLICA"]), int(os.environ["FRAY_REPLICAS"])
OWN = f"{JOB}+{REPLICA}" if REPLICA else JOB
TICK = 0.05
MEETING_SECONDS = 60
CHILDREN = 2


def main(kind: str, seconds: str, effects: str) -> None:
    note(effects, "begin", agent=os.environ["FRAY_AGENT_ID"])
    KINDS[kind](float(seconds), effects)


def work(seconds: float, effects: str) -> None:
    stay(seconds, effects)
    succeed(effects)


def fail(seconds: float, effects: str) -> None:
    stay(seconds, effects)
    sys.exit(3)


def fail_once(seconds: float, effects: str) -> None:
    stay(seconds, effects)
    try:
        create(f"{effects}/{JOB}~failed", {})
    except FileExistsError:
        succeed(effects)
    else:
        sys.exit(4)


def stubborn(seconds: float, effects: str) -> None:
    """Ignores SIGTERM and never ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stay(seconds, effects)


def litter(seconds: float, effects: str) -> None:
    """Leaves a daemon behind, in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(3600)
    stay(seconds, effects)
    succeed(effects)


def member(seconds: float, effects: str) -> None:
    """One replica of several that need one another: it fails as soon as another is gone before all are done."""
    with Meeting() as together:
        stay(seconds, effects, together.check)
        together.part()
    succeed(effects)


def member_fails(seconds: float, effects: str) -> None:
    """Replica 1 fails, and therefore the others fail too."""
    with Meeting() as together:
        stay(seconds, effects, together.check)
        if REPLICA == 1:
            sys.exit(3)
        stay(3600, effects, together.check)


class Meeting:
    """Connections of replica 0 with all others. A replica that is done says so, and waits until 0 says that all are."""

    def __init__(self) -> None:
        host, port = os.environ["FRAY_COORDINATOR"].rsplit(":", 1)
        self.peers = self.listen(host, port) if REPLICA == 0 else [self.connect(host, port)]

    def listen(self, host: str, port: str) -> list[socket.socket]:
        import socket

        with socket.create_server((host, int(port))) as server:
            server.settimeout(MEETING_SECONDS)
            return [server.accept()[0] for _ in range(REPLICAS - 1)]

    def connect(self, host: str, port: str) -> socket.socket:
        import socket

        gives_up = time.monotonic() + MEETING_SECONDS
        while True:
            try:
                return socket.create_connection((host, int(port)), MEETING_SECONDS)
            except ConnectionRefusedError:
                if time.monotonic() > gives_up:
                    raise
                time.sleep(TICK)

    def check(self) -> None:
        """Fail if a replica is gone; one that is done is still there."""
        import select
        import socket

        for peer in select.select(self.peers, [], [], 0)[0]:
            if not peer.recv(1, socket.MSG_PEEK):
                sys.exit(5)
        time.sleep(TICK)

    def part(self) -> None:
        """Return once all are done."""
        if REPLICA:
            self.peers[0].sendall(b"d")
        for peer in self.peers:
            peer.settimeout(None)
            if not peer.recv(1):
                sys.exit(5)
        for peer in self.peers if REPLICA == 0 else ():
            peer.sendall(b"e")

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *error: object) -> None:
        for peer in self.peers:
            peer.close()


def parent(seconds: float, effects: str) -> None:
    """Succeeds with its children."""
    children = launch_children(seconds, effects)
    from fray.cluster import current_cluster

    current_cluster().wait(children, raise_on_failure=True)
    succeed(effects, children=children)


def leaver(seconds: float, effects: str) -> None:
    """Succeeds while its children run, which are then stopped."""
    succeed(effects, children=launch_children(60 * seconds, effects))


def launch_children(seconds: float, effects: str) -> Sequence[str]:
    from fray.cluster import Entrypoint, JobRequest, current_cluster

    command = Entrypoint.from_binary(sys.executable, [*FLAGS, __file__, "work", str(seconds), effects])
    names = [f"{os.environ['FRAY_JOB_NAME']}.child{number}" for number in range(CHILDREN)]
    return current_cluster().launch_many([JobRequest(name, command, grace=1.0) for name in names])


def pause() -> None:
    time.sleep(TICK)


def stay(seconds: float, effects: str, tick: Callable[[], None] = pause) -> None:
    """Record that the attempt runs, for `seconds`."""
    ends = time.monotonic() + seconds
    with open(f"{effects}/{OWN}~{ATTEMPT}~alive", "w") as file:
        while time.monotonic() < ends:
            os.pwrite(file.fileno(), f"{boottime():.3f}".encode(), 0)
            tick()


def succeed(effects: str, **result: object) -> None:
    note(effects, "end")
    with open(os.environ["FRAY_RESULT"], "w") as file:
        json.dump({"job": JOB, "attempt": ATTEMPT, **result}, file)


def note(effects: str, what: str, **more: object) -> None:
    about = {"at": boottime(), "pid": os.getpid(), **more}
    try:
        create(f"{effects}/{OWN}~{ATTEMPT}~{what}", about)
    except FileExistsError:
        create(f"{effects}/{OWN}~{ATTEMPT}~{what}-again-{os.getpid()}", about)


def create(path: str, about: object) -> None:
    with open(f"{path}.{os.getpid()}", "w") as file:
        json.dump(about, file)
    os.link(file.name, path)
    os.unlink(file.name)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


FLAGS = ["-S", "-E"]
ALL = (work, fail, fail_once, stubborn, litter, parent, leaver, member, member_fails)
KINDS = {function.__name__: function for function in ALL}
if __name__ == "__main__":
    main(*sys.argv[1:])

"""The program that the jobs of a chaos run are: `job.py KIND SECONDS EFFECTS`.

What an attempt does outside is written create-exclusively under the job and the attempt, so that an attempt that runs
twice and a result without its work both show. `~alive` holds the last moment at which the attempt was seen running.
Only what a kind needs is imported: hundreds of these processes start on a machine with few cores.
"""

import json
import os
import signal
import sys
import time

JOB, ATTEMPT = os.environ["FRAY_JOB_ID"], int(os.environ["FRAY_ATTEMPT"])
TICK = 0.05
CHILDREN = 2


def main(kind, seconds, effects):
    note(effects, "begin", agent=os.environ["FRAY_AGENT_ID"])
    KINDS[kind](float(seconds), effects)


def work(seconds, effects):
    stay(seconds, effects)
    succeed(effects)


def fail(seconds, effects):
    stay(seconds, effects)
    sys.exit(3)


def fail_once(seconds, effects):
    stay(seconds, effects)
    try:
        create(f"{effects}/{JOB}~failed", {})
    except FileExistsError:
        succeed(effects)
    else:
        sys.exit(4)


def stubborn(seconds, effects):
    """Ignores SIGTERM and never ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stay(seconds, effects)


def litter(seconds, effects):
    """Leaves a daemon behind, in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(3600)
    stay(seconds, effects)
    succeed(effects)


def parent(seconds, effects):
    """Succeeds with its children."""
    children = launch_children(seconds, effects)
    from fray.cluster import current_cluster

    current_cluster().wait(children, raise_on_failure=True)
    succeed(effects, children=children)


def leaver(seconds, effects):
    """Succeeds while its children run, which are then stopped."""
    succeed(effects, children=launch_children(60 * seconds, effects))


def launch_children(seconds, effects):
    from fray.cluster import Entrypoint, JobRequest, current_cluster

    command = Entrypoint.from_binary(sys.executable, [*FLAGS, __file__, "work", str(seconds), effects])
    names = [f"{os.environ['FRAY_JOB_NAME']}.child{number}" for number in range(CHILDREN)]
    return current_cluster().launch_many([JobRequest(name, command, grace=1.0) for name in names])


def stay(seconds, effects):
    """Be seen running for so long."""
    ends = time.monotonic() + seconds
    with open(f"{effects}/{JOB}~{ATTEMPT}~alive", "w") as file:
        while time.monotonic() < ends:
            os.pwrite(file.fileno(), f"{boottime():.3f}".encode(), 0)
            time.sleep(TICK)


def succeed(effects, **result):
    note(effects, "end")
    with open(os.environ["FRAY_RESULT"], "w") as file:
        json.dump({"job": JOB, "attempt": ATTEMPT, **result}, file)


def note(effects, what, **more):
    about = {"at": boottime(), "pid": os.getpid(), **more}
    try:
        create(f"{effects}/{JOB}~{ATTEMPT}~{what}", about)
    except FileExistsError:
        create(f"{effects}/{JOB}~{ATTEMPT}~{what}-again-{os.getpid()}", about)


def create(path, about):
    with open(f"{path}.{os.getpid()}", "w") as file:
        json.dump(about, file)
    os.link(file.name, path)
    os.unlink(file.name)


def boottime():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


FLAGS = ["-S", "-E"]
KINDS = {function.__name__: function for function in (work, fail, fail_once, stubborn, litter, parent, leaver)}
if __name__ == "__main__":
    main(*sys.argv[1:])

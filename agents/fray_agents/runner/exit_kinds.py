"""The kinds of exits that the runner and the task's own process report: the values of `fray_layouts.states.ExitKind`.

They are plain strings here because the runner imports nothing but the standard library and its own package, so that it
starts in some 15 ms, and `fray_layouts` is neither. A unit test compares the two.
"""

SUCCESS = "success"
EXITED = "exited"
SIGNALLED = "signalled"
OUT_OF_MEMORY = "out-of-memory"
LIMIT_EXCEEDED = "limit-exceeded"
TIMEOUT = "timeout"
EXCEPTION = "exception"
UNHEALTHY = "unhealthy"
STOPPED = "stopped"
PREEMPTED = "preempted"
YIELDED = "yielded"
START_FAILED = "start-failed"
HOST_FAILED = "host-failed"
LOST = "lost"
TOO_LARGE = "too-large"

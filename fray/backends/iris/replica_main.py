"""Runs a job's callable in a task of an Iris job."""

from __future__ import annotations

import base64
import os
import pickle


def run_replica(call: str) -> None:
    """Set the variables that `fray.cluster.current_replica` reads, and call the job's function.

    Args:
        call: base64 of the pickled function, positional arguments and keyword arguments, as in a job's spec.
    """
    from iris.cluster.client.job_info import get_job_info

    mine = get_job_info()
    assert mine is not None, "only a task of an Iris job runs this"
    index = str(mine.task_index)
    os.environ.update(FRAY_REPLICA=index, FRAY_INDEX=index, FRAY_REPLICAS=str(mine.num_tasks))
    try:
        function, args, kwargs = pickle.loads(base64.b64decode(call))
    except Exception as error:
        fail_for_good(error)
        raise
    function(*args, **kwargs)


def fail_for_good(error: BaseException) -> None:
    """Make this task fail without another attempt, because every attempt would fail in the same way."""
    from iris.client.client import iris_ctx
    from iris.cluster.types import TaskAttempt

    context = iris_ctx()
    context.client.fail_tasks((TaskAttempt(context.task_attempt.task_id),), reason=f"{type(error).__name__}: {error}")

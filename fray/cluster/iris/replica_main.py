"""What runs a callable in a task of an Iris job."""

from __future__ import annotations

import base64
import os
import pickle


def run_replica(call: str) -> None:
    """Call the function of a job, with the variables by which it knows its place; see `fray.cluster.current_replica`.

    Args:
        call: the pickled function, list of arguments and named ones, in base64, as a spec has them.
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
    """Have this task fail without a further attempt, for a reason that would come back."""
    from iris.client.client import iris_ctx
    from iris.cluster.types import TaskAttempt

    context = iris_ctx()
    context.client.fail_tasks((TaskAttempt(context.task_attempt.task_id),), reason=f"{type(error).__name__}: {error}")

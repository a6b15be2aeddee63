"""Functions that run on every host of TPU slices.

devices = run_on_pod_resumable(train, "v5litepod-16", max_retries_failure=3)

`pods` has the functions, and the choice among several numbers of slices.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

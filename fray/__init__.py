"""Fray: jobs, actors and queues whose whole control plane is an object-storage bucket.

All public names are imported when they are first used, so `import fray` costs next to nothing.

The layers for readers of the code, from the lowest up: `types`, `resources`, `entrypoints` and `environments` have the
classes that users fill in, and `errors` those that they catch. `cluster` launches jobs. `tpu` runs functions on every
host of TPU slices. `rpc` calls actors that programs host, and `actor` those that have a job of their own. `queue` and
`pool` distribute items and tasks. `client` offers jobs and actors in one object. `job` and `zephyr` run tasks and
pipelines inside a job. `filesystem` shows jobs' files to fsspec. `cli` is the command line. `v1` and `v2` offer the
same names under other module paths.
"""

import fray.uncaught  # noqa: F401 - from now on it shows what ends the program
from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

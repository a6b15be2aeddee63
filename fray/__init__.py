"""Fray: jobs, actors and queues whose whole control plane is an object-storage bucket.

All public names are imported when they are first used: `import fray` costs next to nothing.

For those who read the code, from the lowest layer up: `types`, with `resources`, `entrypoints` and `environments`, is
what users write, `errors` what they catch; `cluster` launches jobs; `tpu` runs functions on every host of slices; `rpc`
calls actors that programs host, `actor` those with jobs of their own; `queue` and `pool` share out items and tasks;
`client` is jobs and actors in one object; `job` and `zephyr` run tasks and pipelines inside a job; `cli` is the command
line. `v1` and `v2` are second names.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

"""`RayClient`: submits jobs and creates actors on Ray.

The jobs are those of `fray.cluster.ray`, and the actors are Ray's own. Ray is imported when it is first used; the extra
`ray` installs it. Reading order: `client`, `actor_create`, `actor_host` (the actor's process), `actor_handle`,
`actor_calls` and `actor_group` (the caller's side).
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

"""Jobs and actors on Iris, for programs that have an Iris controller and no bucket.

client = FrayIrisClient("iris://host:port")

`connection` finds the controller, `requests` translates requests, and `cluster` has `IrisCluster`. An actor is a task
of a job: `actor_host` serves its calls with Iris's own server, and callers (`actors`) find it through the controller's
endpoints; `client` creates it. Iris is imported when it is first used. The extra `iris` installs it, on Python 3.12 and
newer.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

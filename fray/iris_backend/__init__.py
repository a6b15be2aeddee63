"""`FrayIrisClient`: submits jobs and creates actors on Iris.

The jobs are those of `fray.cluster.iris`. An actor is a task of a job: it serves calls with Iris's own server, and
callers find it through the controller's endpoints. Iris is imported when it is first used. The extra `iris` installs
it, on Python 3.12 and newer. Start reading with `client`.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

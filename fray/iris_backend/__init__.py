"""Jobs and actors on Iris through one object: `FrayIrisClient`.

The jobs are those of `fray.cluster.iris`. An actor is a task of a job that serves calls by Iris's own server, and is
found through the endpoints of the controller. Iris is imported when it is first used: the extra `iris` installs it, on
Python 3.12 and newer. Read `client`.
"""

from fray.lazy_exports import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

"""The names of `fray.job` under the module path that older programs import."""

from fray.job import *
from fray.job.contexts import _job_context as _job_context

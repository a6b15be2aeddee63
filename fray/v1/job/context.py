"""The names of `fray.job` and `fray.job.context` under a second module path."""

from fray.job import *
from fray.job.context import _job_context as _job_context

"""`fray.job` under a second name."""

from fray.job import *

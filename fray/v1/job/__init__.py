"""The names of `fray.job` under a second module path."""

from fray.job import *

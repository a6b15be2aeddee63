"""The names of `fray.types` and `fray.client` under a second module path."""

from fray.client import JobHandle as JobHandle
from fray.types import *

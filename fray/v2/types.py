"""`fray.types` and `fray.client` under a second name."""

from fray.client import JobHandle as JobHandle
from fray.types import *

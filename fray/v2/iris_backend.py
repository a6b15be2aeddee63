"""The names of `fray.backends.iris` under a second module path."""

from fray.backends.iris import *

"""The names of `fray.backends.ray` under a second module path."""

from fray.backends.ray import *

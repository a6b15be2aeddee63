"""The names of `fray.cluster` under a second module path."""

from fray.cluster import *

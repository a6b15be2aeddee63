"""The names of `fray.local_backend` under a second module path."""

from fray.local_backend import *

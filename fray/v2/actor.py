"""The names of `fray.actor` under a second module path."""

from fray.actor import *

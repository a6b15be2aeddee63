"""The names of `fray.queue` under a second module path."""

from fray.queue import *

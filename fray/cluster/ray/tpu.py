"""The names of `fray.tpu` under a second module path."""

from fray.tpu import *

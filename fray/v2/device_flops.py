"""The names of `fray.device_flops` under a second module path."""

from fray.device_flops import *

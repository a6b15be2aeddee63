"""The names of `fray.cluster` and `fray.device_flops` under a second module path."""

from fray.cluster import *
from fray.device_flops import FlopDtype as FlopDtype

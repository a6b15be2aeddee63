"""`fray.cluster` and `fray.device_flops` under a second name."""

from fray.cluster import *
from fray.device_flops import FlopDtype as FlopDtype

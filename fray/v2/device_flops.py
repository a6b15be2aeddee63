"""`fray.device_flops` under a second name."""

from fray.device_flops import *

"""`fray.cluster` under a second name."""

from fray.cluster import *

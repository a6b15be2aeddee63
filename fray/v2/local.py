"""`fray.local_backend` under a second name."""

from fray.local_backend import *

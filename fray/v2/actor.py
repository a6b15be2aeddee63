"""`fray.actor` under a second name."""

from fray.actor import *

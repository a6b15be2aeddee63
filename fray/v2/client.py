"""`fray.client` and `fray.current_client` under a second name."""

from fray.client import *
from fray.current_client import *

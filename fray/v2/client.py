"""The names of `fray.client` and `fray.current_client` under a second module path."""

from fray.client import *
from fray.current_client import *

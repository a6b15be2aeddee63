"""The modules of `fray` under the paths of its second version, and their names."""

from fray.actor import *
from fray.client import *
from fray.current_client import *
from fray.local_backend import *
from fray.types import *

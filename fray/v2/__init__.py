"""`fray` as programs of its second version import it."""

from fray.actor import *
from fray.client import *
from fray.current_client import *
from fray.local_backend import *
from fray.types import *

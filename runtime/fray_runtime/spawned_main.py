"""The main module of a process that `multiprocessing` spawns in a task: the names that the task's `__main__` has.

It is a module of its own because `multiprocessing` runs it by its name, and makes all its names those of `__main__`.
The file is in the task's own directory, like the call itself.
"""

import os as _os
import pickle as _pickle

from fray_runtime.users_main import NAMES_VAR as _NAMES_VAR

if __name__ == "__mp_main__":
    with open(_os.environ[_NAMES_VAR], "rb") as _file:
        globals().update(_pickle.load(_file))

"""What Ray pickles by value: it has a cloudpickle of its own, which knows nothing of what is said to the other one."""

import sys

from fray_agents.pickling import modules_pickled_by_value


def pickle_registered_by_value() -> None:
    """Have Ray pickle by value what this program wants so (`cloudpickle.register_pickle_by_value`)."""
    if wanted := modules_pickled_by_value():
        from ray import cloudpickle

        for name in wanted - cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(sys.modules[name])

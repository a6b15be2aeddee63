"""Makes Ray pickle modules by value. Ray has its own copy of cloudpickle, which does not know the other's settings."""

import sys

from fray_agents.pickling import modules_pickled_by_value


def pickle_registered_by_value() -> None:
    """Make Ray pickle by value the modules that are registered so (`cloudpickle.register_pickle_by_value`)."""
    if wanted := modules_pickled_by_value():
        from ray import cloudpickle

        for name in wanted - cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(sys.modules[name])

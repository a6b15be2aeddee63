"""The modules that prestarted processes import before they get a callable or an actor."""

PRESTART_MODULES = ("fray.actor.create", "cloudpickle")

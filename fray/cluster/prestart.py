"""The modules that prestarted processes have imported before there is a callable or an actor for them."""

PRESTART_MODULES = ("fray.actor.hosting", "cloudpickle")

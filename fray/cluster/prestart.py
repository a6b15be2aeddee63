"""What an agent's prestarted processes import ahead, so that callables and actors start without waiting for it."""

PRESTART_MODULES = ("fray.actor.hosting", "cloudpickle")

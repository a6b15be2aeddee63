"""What an agent's spare processes import ahead, so that actors and callables start without waiting for it."""

PRESTART_MODULES = ("fray.actor.hosting", "cloudpickle")

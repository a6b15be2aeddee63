"""The base of every error that Fray shows to people, sorted by what the caller should do about it."""

from __future__ import annotations

from fray_layouts.text import escaped


class FrayError(Exception):
    """Base of all errors raised by Fray; catch it to catch them all.

    A message may quote what others wrote; what a terminal would obey in it is escaped.
    """

    def __str__(self) -> str:
        return escaped(super().__str__()) or " ".join((type(self).__doc__ or "").split())


class InvalidInput(FrayError, ValueError):
    """The input is wrong: fix it and call again. Nothing was changed.

    Args:
        field: dotted name of what is wrong, as the person wrote it (``resources.cpu``).
        value: what was given; shortened in the message.
        remedy: what to write instead, a sentence without its full stop.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field = field
        self.value = value
        self.remedy = remedy
        super().__init__(f"{field}: {_shorten(value)} is not accepted; {remedy}")

    def __reduce__(self) -> tuple[type, tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.remedy)


class Temporary(FrayError):
    """It may work later: try the same call again."""


class Permanent(FrayError):
    """Trying again will not help: give up, or change something first."""


class Malformed(Permanent, ValueError):
    """These bytes are not what they should be; look at where they come from."""


def _shorten(value: object, limit: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 20]}... ({len(text)} characters)"

"""Reads environment variables. All other modules read them through this one.

Their text comes from files, secrets and other programs, which leave line breaks and quotes in it. Taken literally, such
a text names another folder, another namespace or another key, and nobody notices. So white space at the ends is
removed, and what cannot be meant is refused with the variable's name.
"""

import os
import re
from collections.abc import Mapping

from fray_layouts.errors import InvalidInput

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def read_variable(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The value of a variable without white space at its ends; None if it is not set.

    environ: the process's environment, or that of a task.

    Raises InvalidInput: it is in quotes, or has a control character.
    """
    text = environ.get(name)
    return None if text is None else without_white_space(name, text, is_secret=not name.startswith("FRAY_"))


def without_white_space(field: str, text: str, is_secret: bool) -> str:
    """A text from a variable or a file without white space at its ends.

    Args:
        field: what it sets, for the error.
        is_secret: the error does not show the text.

    Raises InvalidInput: it is in quotes, or has a control character.
    """
    value = text.strip()
    shown = f"<{len(value)} characters>" if is_secret else value
    if value.startswith(("'", '"')) or value.endswith(("'", '"')):
        raise InvalidInput(field, shown, "remove the quotes: they are part of the text here, unlike in a shell")
    if _CONTROL.search(value):
        raise InvalidInput(field, shown, "remove the line break or other control character in it")
    return value


def check_for_libraries(*prefixes: str) -> None:
    """Check the variables with these prefixes, before a library that takes them literally reads them.

    Raises InvalidInput: one has white space at its ends, is in quotes, or has a control character.
    """
    for name, text in os.environ.items():
        if name.startswith(prefixes) and read_variable(name) != text:
            raise InvalidInput(name, f"<{len(text)} characters>", "remove the white space at its ends")

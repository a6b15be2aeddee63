"""The option --gpus of `fray run` and `fray agent`."""

import re

from fray_layouts.errors import InvalidInput


def parse_gpus(text: str) -> tuple[str, float]:
    """Kind and count of the GPUs in "8" (any kind: ""), "h100:8" or "0.5". Raises InvalidInput if there is no count."""
    kind, _, count = text.rpartition(":")
    if not re.fullmatch(r"[0-9]+|0?\.[0-9]+", count):
        raise InvalidInput("--gpus", text, "give a count, or kind:count such as h100:8")
    return kind, int(count) if count.isdecimal() else float(count)

"""The option --gpus of `fray run` and `fray agent`."""

from fray_layouts.errors import InvalidInput


def parse_gpus(text: str) -> tuple[str, int]:
    """Kind and count of the GPUs in "8" (of any kind: "") or "h100:8". Raises InvalidInput: there is no count."""
    kind, _, count = text.rpartition(":")
    if not count.isdigit():
        raise InvalidInput("--gpus", text, "give a count, or kind:count such as h100:8")
    return kind, int(count)

"""Encodes and checks the parts of keys: ids, names, numbers and times. `object_keys` and its siblings join them."""

import re
from base64 import b32hexencode
from functools import lru_cache

from fray_layouts.bounds import ID_PATTERN, MAX_JOB_ID, MAX_NAME, MAX_TIME, NAME_PATTERN
from fray_layouts.errors import InvalidInput

BASE32_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base-32 digits in lower case, in the order of their bytes, so that text order is number order."""
TIME_DIGITS = 9
"""Nine digits hold milliseconds until the year 3084 (`bounds.MAX_TIME`)."""
RANDOM_DIGITS = 6
"""30 random bits after the time: of a thousand ids made in one millisecond, two are equal once in 2,000 times."""
ID_DIGEST_DIGITS = 8
"""40 bits of a digest. They distinguish ids that differ only in the place of hyphens or in the namespace."""
MAX_KEY_PART_BYTES = 255
"""Bytes between two slashes: the longest file name that common file systems allow."""
_ID, _NAME = re.compile(ID_PATTERN), re.compile(NAME_PATTERN)
NUMBER_PATTERN = "(0|[1-9][0-9]{0,15})"
ATTEMPT_PATTERN = "([1-9][0-9]{0,8})"


def is_id(text: str, longest: int = MAX_JOB_ID) -> bool:
    """Whether the text can be the id of a job or an agent."""
    return len(text) <= longest and _ID.match(text) is not None


def is_name(text: str, longest: int = MAX_NAME) -> bool:
    """Whether the text can be a name that a person gave, such as that of a pool or an actor."""
    return len(text) <= longest and _NAME.match(text) is not None


def is_pool(text: str) -> bool:
    """Whether the text can name a pool: a name, or the private pool of a reservation."""
    return is_name(text) or (text.startswith("~") and is_id(text[1:]))


def is_namespace(text: str) -> bool:
    """Whether the text can be a namespace: a name, or the id of a job that names none."""
    return is_name(text, MAX_JOB_ID)


def stem_of(key: str, folder: str) -> str | None:
    """The part of a key between the folder and ".json"; None if the key is not of that form."""
    name = key.removeprefix(folder)
    return name.removesuffix(".json") if name.endswith(".json") and name != key else None


def id_of(key: str, folder: str) -> str | None:
    """The id of the object `<folder><id>.json`; None if the key is not of that form."""
    name = stem_of(key, folder)
    return name if name is not None and is_id(name) else None


def digest_text(digest: bytes) -> str:
    """Encode a digest in letters and digits that a key may hold."""
    return b32hexencode(digest).decode().lower().rstrip("=")


@lru_cache(maxsize=1024)
def encode_time(seconds: float) -> str:
    """Encode a time as milliseconds since the epoch in nine base-32 digits; text order is time order.

    Raises InvalidInput: the time is before the epoch, or after the year 3084.
    """
    if not 0 <= seconds <= MAX_TIME:
        raise InvalidInput("time", seconds, f"give seconds since the epoch, at most {MAX_TIME:.0f}")
    number = round(seconds * 1000)
    digits = ""
    for _ in range(TIME_DIGITS):
        number, rest = divmod(number, 32)
        digits = BASE32_DIGITS[rest] + digits
    return digits


@lru_cache(maxsize=4096)
def decode_time(digits: str) -> float:
    """The inverse of `encode_time`: seconds since the epoch, to the millisecond.

    Cached, because queues decode each segment's time several times.
    """
    number = 0
    for digit in digits:
        number = number * 32 + BASE32_DIGITS.index(digit)
    return number / 1000

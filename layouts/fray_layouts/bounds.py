"""Bounds of what records and specs hold: msgspec checks them as it decodes, and the schemas tell them.

What is within them can be compared, added to a time, put into a key and listed in order without a further check. A
value beyond them makes a record unreadable, so every bound is far from what any cluster has.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

LARGEST = 2**53
"""Every whole number up to it is exact in any JSON reader."""
LATEST = (32**9 - 1) / 1000
"""The last time that a name can hold, in seconds since the epoch: the year 3084."""
LONGEST = 1e9
"""Seconds, some 31 years: longer waits overflow what operating systems count in nanoseconds."""
MOST_ATTEMPTS = 10**9 - 1
MAX_NAME = 128
MAX_JOB_ID = 144
"""A name, a hyphen and a suffix. With it and the longest shape an index entry's name just fits every store."""
MAX_VARIANT = 32

_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
NAME = rf"^(?!.*(\.\.|\n)){_NAME}$"
MAYBE_NAME = rf"^(?!.*(\.\.|\n))({_NAME})?$"
_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*"
ID = rf"^(?!.*(\.\.|\n)){_ID}$"
MAYBE_ID = rf"^(?!.*(\.\.|\n))({_ID})?$"
KEY = r"^(?!.*(\n|//))(?!(.*/)?\.\.?(/|$))([^/\0\r]([^\0\r]*[^/\0\r])?)?$"

_WORDS = "use letters, digits, '-', '_' and '.', with a letter or digit at both ends and without '..'"
_ID_WORDS = "an id is letters, digits, '-', '_' and '.', it begins with a letter or digit and has no '..'"
REMEDIES = {
    NAME: _WORDS,
    MAYBE_NAME: _WORDS,
    ID: _ID_WORDS,
    MAYBE_ID: _ID_WORDS,
    KEY: "give the key of an object, without empty segments, '.', '..' and control characters",
    "^/": "it begins with '/'",
}
"""What a person is told whose text does not match a pattern."""

Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Amount = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Attempts = Annotated[int, Meta(ge=0, le=MOST_ATTEMPTS)]
AttemptNumber = Annotated[int, Meta(ge=1, le=MOST_ATTEMPTS)]
Number = Annotated[float, Meta(ge=-1e15, le=1e15)]
Time = Annotated[float, Meta(ge=0, le=LATEST)]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST)]
Interval = Annotated[float, Meta(gt=0, le=LONGEST)]
Name = Annotated[str, Meta(pattern=NAME, max_length=MAX_NAME)]
MaybeName = Annotated[str, Meta(pattern=MAYBE_NAME, max_length=MAX_NAME)]
MaybeJobId = Annotated[str, Meta(pattern=MAYBE_NAME, max_length=MAX_JOB_ID)]
"""Also of a namespace, which is a job's id if nobody named one."""
Id = Annotated[str, Meta(pattern=ID, max_length=MAX_JOB_ID)]
MaybeId = Annotated[str, Meta(pattern=MAYBE_ID, max_length=MAX_JOB_ID)]
Base64 = Annotated[str, Meta(pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")]
Key = Annotated[str, Meta(pattern=KEY, max_length=900)]

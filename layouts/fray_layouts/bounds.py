"""Bounds of the values in records and specs. msgspec checks them when it decodes, and the schemas state them.

A value within its bounds can be compared, added to a time, put into a key and listed in order without further checks. A
value out of bounds makes a record unreadable, so every bound is far from what any cluster has.
"""

from typing import Annotated

from msgspec import Meta

MAX_SAFE_INTEGER = 2**53
"""Every JSON reader represents whole numbers up to this one exactly."""
MAX_TIME = (32**9 - 1) / 1000
"""The latest time that a name can hold, in seconds since the epoch: the year 3084."""
MAX_SECONDS = 1e9
"""Seconds, some 31 years; longer waits overflow operating systems' counters of nanoseconds."""
MAX_ATTEMPTS = 10**9 - 1
"""The largest attempt number: keys have room for nine digits."""
MAX_NAME = 128
"""Characters of a name that a person gives."""
MAX_JOB_ID = 144
"""Characters: a name, a hyphen and a suffix. An index entry's key with such an id and the longest shape just fits
every store."""
MIN_PRIORITY, MAX_PRIORITY = -500, 499
"""Priorities in keys are three digits that count down from the highest, so that higher priorities are listed first."""
MAX_VARIANT = 32
"""Characters of an accelerator's variant, which is part of the keys of index entries."""
MAX_CALLABLE_NAME = 200
"""Characters of a callable's name, which people read in tables; longer names are cut."""
MAX_IMAGE = 512
"""Characters of a container image's name with registry, path, tag and digest; registries allow 255 for the path."""
MAX_WORKSPACE_FILES = 100_000
"""Entries of a workspace's archive: the largest repositories of one team have that many files."""
MAX_WORKSPACE_PATH_BYTES = 1024
"""Bytes of the path of a workspace's entry. A host puts a directory before it, and Linux allows 4,096 in total."""
MAX_WORKSPACE_BYTES = 10 * 10**9
"""Bytes of all files of a workspace, unpacked: every attempt gets a copy of them."""
MAX_BUNDLES = 10_000
"""Bundles of one owner: as many as a gang may have replicas. Each step of the scheduler goes through all of them."""
MAX_MACHINES = 10_000
"""Machines of one pool, and hosts of one machine: more than any provider makes, and few enough to list one by one."""
MAX_PORT = 65_535
MAX_KEY_BYTES = 900
"""Bytes of a whole key: GCS and S3 allow 1,024, and the root's own prefix needs some of them."""

_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
NAME_PATTERN = rf"^(?!.*(\.\.|\n)){_NAME}$"
MAYBE_NAME_PATTERN = rf"^(?!.*(\.\.|\n))({_NAME})?$"
_ID = r"[A-Za-z0-9][A-Za-z0-9._-]*"
ID_PATTERN = rf"^(?!.*(\.\.|\n)){_ID}$"
MAYBE_ID_PATTERN = rf"^(?!.*(\.\.|\n))({_ID})?$"
KEY_PATTERN = r"^(?!.*(\n|//))(?!(.*/)?\.\.?(/|$))([^/\0\r]([^\0\r]*[^/\0\r])?)?$"

POOL_PATTERN = rf"^(?!.*(\.\.|\n))~?{_NAME}$"
"""A pool that a person named, or `~` and the id of a reservation: its private pool."""
MAYBE_PYTHON_PATTERN = r"^(?!.*\n)(3\.[0-9]{1,3})?$"

SAME_PATTERN = "^(zone|region)?$"
OUTAGE_PATTERN = "^(run|stop)?$"

FAMILY_PATTERN = "^[0-9a-f]{6}$"

USER_PATTERN = r"^(?!.*\n)[^\x00-\x1f\x7f]*$"
"""As permissive as login names are: those of directory services have '@', '\\' and letters of any script."""
_WORDS = "use letters, digits, '-', '_' and '.', with a letter or digit at both ends and without '..'"
_ID_WORDS = "an id is letters, digits, '-', '_' and '.', it begins with a letter or digit and has no '..'"
REMEDIES = {
    NAME_PATTERN: _WORDS,
    MAYBE_NAME_PATTERN: _WORDS,
    POOL_PATTERN: _WORDS,
    ID_PATTERN: _ID_WORDS,
    MAYBE_ID_PATTERN: _ID_WORDS,
    KEY_PATTERN: "give the key of an object, without empty segments, '.', '..' and control characters",
    MAYBE_PYTHON_PATTERN: "give a minor version such as 3.11",
    SAME_PATTERN: "give zone, region, or nothing",
    FAMILY_PATTERN: "give the first six hexadecimal digits of the SHA-256 of a job's id",
    OUTAGE_PATTERN: "give run, stop, or nothing",
    USER_PATTERN: "give a login name, without control characters",
    "^/": "it begins with '/'",
}
"""By pattern: the remedy in the error for a text that does not match it."""

Priority = Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
Count = Annotated[int, Meta(ge=0, le=MAX_SAFE_INTEGER)]
IN_BYTES, IN_SECONDS = {"unit": "bytes"}, {"unit": "seconds"}
"""Mark a field in which people may write a unit, such as 2GB or 10m; `fray_layouts.parsing` converts it."""
Bytes = Annotated[int, Meta(ge=0, le=MAX_SAFE_INTEGER, extra=IN_BYTES)]
Amount = Annotated[int, Meta(ge=-MAX_SAFE_INTEGER, le=MAX_SAFE_INTEGER)]
Attempts = Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS)]
AttemptNumber = Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)]
Number = Annotated[float, Meta(ge=-1e15, le=1e15)]
"""A measured value: finite, and exact to a tenth."""
Time = Annotated[float, Meta(ge=0, le=MAX_TIME)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS, extra=IN_SECONDS)]
Interval = Annotated[float, Meta(gt=0, le=MAX_SECONDS, extra=IN_SECONDS)]
Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=MAX_NAME)]
Pool = Annotated[str, Meta(pattern=POOL_PATTERN, max_length=MAX_JOB_ID + 1)]
MaybeName = Annotated[str, Meta(pattern=MAYBE_NAME_PATTERN, max_length=MAX_NAME)]
MaybeJobId = Annotated[str, Meta(pattern=MAYBE_NAME_PATTERN, max_length=MAX_JOB_ID)]
"""Also the type of a namespace, which is a job's id if nobody chose one."""
Id = Annotated[str, Meta(pattern=ID_PATTERN, max_length=MAX_JOB_ID)]
MaybeId = Annotated[str, Meta(pattern=MAYBE_ID_PATTERN, max_length=MAX_JOB_ID)]
FamilyDigits = Annotated[str, Meta(pattern=FAMILY_PATTERN)]
User = Annotated[str, Meta(pattern=USER_PATTERN, max_length=MAX_NAME)]
Base64 = Annotated[str, Meta(pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")]
Key = Annotated[str, Meta(pattern=KEY_PATTERN, max_length=MAX_KEY_BYTES)]

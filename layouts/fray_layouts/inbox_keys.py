"""The keys of files that people drop into the inbox, and of their later copies; see `object_keys`."""

import re

from fray_layouts.key_encoding import (
    BASE32_DIGITS,
    MAX_KEY_PART_BYTES,
    RANDOM_DIGITS,
    TIME_DIGITS,
    decode_time,
    encode_time,
)

_VISIBLE = r"[^/\x00-\x1f\x7f\ud800-\udfff]"
_DROP = re.compile(rf"inbox/(?!\.){_VISIBLE}+\.json")
_REJECTED = re.compile(rf"inbox/rejected/({_VISIBLE}+)\.([A-Za-z0-9-]{{0,64}})\.json")
_ASIDE = re.compile(rf"inbox/aside/({_VISIBLE}+)~([A-Za-z0-9-]{{0,64}})~([A-Za-z0-9-]{{1,32}})")
_TAKEN_IN = re.compile(rf"~([{BASE32_DIGITS}]{{{TIME_DIGITS}}})[{BASE32_DIGITS}]{{{RANDOM_DIGITS}}}\.json$")
_MAX_STEM_BYTES = 150
"""Bytes of a drop's name that its derived names keep, so that these fit into a key as well."""


class InboxKeys:
    """The keys `inbox/<name>.json`, written by people, and `inbox/rejected/` and `inbox/aside/`, written by Fray."""

    area = "inbox/"
    rejected_prefix = "inbox/rejected/"
    behind_rejections = "inbox/rejected0"
    """Sorts after all names under `rejected_prefix`."""
    aside_prefix = "inbox/aside/"

    @staticmethod
    def is_drop(key: str) -> bool:
        """Whether the key is a submission: `*.json` right under `inbox/`, not starting with a dot."""
        return _DROP.fullmatch(key) is not None and len(key.encode()) <= len(InboxKeys.area) + MAX_KEY_PART_BYTES

    @staticmethod
    def key(name: str) -> str:
        return f"inbox/{name}.json"

    @staticmethod
    def staged(key: str, now: float, token: str) -> str:
        """The key to which a local drop is renamed before it becomes a job; nobody edits the file under that name."""
        return f"inbox/{InboxKeys._stem(key)}~{encode_time(now)}{token[:RANDOM_DIGITS]}.json"

    @staticmethod
    def staged_at(key: str) -> float | None:
        """When a drop was staged; None for one that was not."""
        found = _TAKEN_IN.search(key)
        return decode_time(found[1]) if found else None

    @staticmethod
    def dropped_as(key: str) -> str:
        """The key under which a person dropped the file."""
        return InboxKeys.key(InboxKeys._stem(key)) if _TAKEN_IN.search(key) else key

    @staticmethod
    def rejected(key: str, version: str) -> str:
        return f"inbox/rejected/{InboxKeys._stem(key)}.{_key_safe(version)}.json"

    @staticmethod
    def aside(key: str, version: str, token: str) -> str:
        """The key to which a local drop is moved once `version` was handled; the token keeps two movers apart."""
        return f"inbox/aside/{InboxKeys._stem(key)}~{_key_safe(version)}~{token}"

    @staticmethod
    def parse_aside(key: str) -> tuple[str, str] | None:
        """(stem of the drop, version that was handled) of a key under `inbox/aside/`; None for any other key."""
        found = _ASIDE.fullmatch(key)
        if (
            found is None
            or InboxKeys.aside(found[1], found[2], found[3]) != key
            or not InboxKeys.is_drop(InboxKeys.key(found[1]))
        ):
            return None
        return found[1], found[2]

    @staticmethod
    def is_rejection(key: str) -> bool:
        """Whether the key is one that `rejected` builds."""
        found = _REJECTED.fullmatch(key)
        return found is not None and InboxKeys.rejected(found[1], found[2]) == key

    @staticmethod
    def _stem(key: str) -> str:
        stem = _TAKEN_IN.sub("", key).removeprefix("inbox/").removesuffix(".json").replace("~", "-")
        return stem.encode()[:_MAX_STEM_BYTES].decode(errors="ignore")


def _key_safe(version: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "", version)[:64]

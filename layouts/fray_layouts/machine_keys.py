"""The keys of machines and of their boot logs; see `object_keys`."""

import re

from fray_layouts.key_encoding import NUMBER_PATTERN, RANDOM_DIGITS, encode_time, is_id, is_name

_MACHINE_KEY = re.compile(r"machines/([^/]+)/([^/]+)\.json")
_BOOT_LOG = re.compile(rf"machines/([^/]+)/([^/]+)/boot-{NUMBER_PATTERN}\.log")


class MachineKeys:
    """`machines/<pool>/<name>.json`, and beside it `machines/<pool>/<name>/boot-<host>.log`."""

    area = "machines/"

    @staticmethod
    def fresh(now: float, token: str) -> str:
        """A new name for a machine wanted at `now` (storage's clock); it is short because providers limit names."""
        return f"m{encode_time(now)}{token[:RANDOM_DIGITS]}"

    @staticmethod
    def folder(pool: str) -> str:
        """The prefix of the keys of a pool's machines."""
        return f"machines/{pool}/"

    @staticmethod
    def key(pool: str, name: str) -> str:
        return f"{MachineKeys.folder(pool)}{name}.json"

    @staticmethod
    def parse(key: str) -> tuple[str, str] | None:
        """(pool, name) of a machine's key; None for any other key."""
        found = _MACHINE_KEY.fullmatch(key)
        return (found[1], found[2]) if found and is_name(found[1]) and is_id(found[2]) else None

    @staticmethod
    def boot_log(pool: str, name: str, host: int) -> str:
        """The key of the output of a host that started but could not start its agent."""
        return f"{MachineKeys.folder(pool)}{name}/boot-{host}.log"

    @staticmethod
    def is_boot_log(key: str) -> bool:
        """Whether the key is one that `boot_log` builds."""
        found = _BOOT_LOG.fullmatch(key)
        return found is not None and is_name(found[1]) and is_id(found[2])

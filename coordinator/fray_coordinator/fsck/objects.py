"""Objects that are not what their names say."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fray_coordinator import doorbell
from fray_coordinator.errors import LOOK_AT_IT
from fray_coordinator.fsck.areas import AREAS, MEANING, Kind
from fray_coordinator.fsck.picture import Picture
from fray_coordinator.fsck.trouble import BY_HAND, BY_US, Suspicion, Trouble
from fray_layouts.inbox_names import Inbox
from fray_layouts.names import Coordinator, Pools


def odd_objects(seen: Picture) -> Iterator[Suspicion]:
    """What cannot be read, lies under another's name, or has a name that means nothing."""
    for key, problem in seen.unreadable.items():
        yield _unreadable(key, problem.removesuffix(LOOK_AT_IT))
    for key, own in seen.misplaced.items():
        remedy = f"move it there if nothing lies there; else {BY_HAND}"
        yield Suspicion(Trouble(key, f"it holds a record that belongs under {own}", remedy))
    for key in seen.strays:
        yield Suspicion(_stray(key))
    for area, why in seen.unlisted.items():
        yield Suspicion(_unlisted(area, why))
    for key in seen.foreign:
        what = "it is none of Fray's: Fray never looks at it and never removes it"
        remedy = "move it out of this root, unless a newer version of Fray put it here"
        yield Suspicion(Trouble(key, what, remedy))


def left_alone_by_the_pass(seen: Picture) -> Iterator[Suspicion]:
    """What the passes that run could not deal with, though it looks sound here."""
    if seen.passes is None or not seen.passes_run():
        return
    last = seen.passes.record
    named = {*seen.unreadable, *seen.misplaced, *seen.strays, *seen.drops}
    there = {key for keys in seen.keys.values() for key in keys}
    for key, problem in last.problems.items():
        if key not in named and (key in there or key.endswith("/")):
            what = f"the coordinator's last pass left it alone: {problem.removesuffix(LOOK_AT_IT)}"
            yield Suspicion(Trouble(key, what, "the next pass tries again; if it stays so, look at it"))
    if last.problems_untold:
        what = f"the coordinator's last pass left more objects alone than it names: {last.problems_untold} more"
        yield Suspicion(Trouble(Coordinator.lease, what, "deal with those that are named first"))


def _unlisted(area: str, why: str) -> Trouble:
    if area == "/":
        what = f"what lies here beside Fray's own objects cannot be listed ({why})"
        return Trouble(area, what, "Fray does not need it; better give the cluster a folder of its own")
    what = f"it cannot be listed ({why}): nothing there was looked at, nor what can only be told with it"
    return Trouble(area, what, "see that the storage answers and that the credentials may list it, then look again")


def _stray(key: str) -> Trouble:
    if key.startswith(Inbox.prefix):
        what = "no agent looks at it, so it becomes no job: specs are inbox/<name>.json, right in the inbox"
        return Trouble(key, what, "rename it, or remove it")
    return Trouble(key, "its name is not one that Fray gives to what lies here", BY_HAND)


def _unreadable(key: str, problem: str) -> Suspicion:
    means, remedy = MEANING[_kind(key)]
    what, pool = f"{means} ({problem})", Pools.parse(key)
    if pool is not None:
        return Suspicion(Trouble(key, what, BY_US), mend=partial(doorbell.ring, pool=pool))
    return Suspicion(Trouble(key, what, remedy))


def _kind(key: str) -> Kind:
    kind = next(area.kind(key) for area in AREAS if key.startswith(area.prefix))
    assert kind is not None, "strays are not read"
    return kind

"""What `fray agent` says of its host's place, and of the TPU slice that it is in."""

from __future__ import annotations

import pytest

from fray.cli.commands.agent import capacity_of, checked_machine
from fray.cli.places import parse_place
from fray_layouts.errors import InvalidInput
from fray_layouts.records import SliceMember


def test_a_host_of_a_slice_has_the_chips_of_its_type() -> None:
    place = parse_place("z-a", "z", ("disk=ssd", "rack=a=1"), "v5litepod-16", "blue", 2)
    assert (place.zone, place.region, place.labels) == ("z-a", "z", {"disk": "ssd", "rack": "a=1"})
    assert place.slice == SliceMember(id="blue", type="v5litepod-16", index=2, hosts=4)
    offered = capacity_of(4, None, None, "v5litepod-16")
    assert (offered.device, offered.device_count) == ("tpu-v5litepod-16", 4)


def test_a_slice_of_one_host_needs_no_name() -> None:
    first, second = (parse_place("", "", (), "v5litepod-4", None, None).slice for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.index, first.hosts) == (0, 1)
    assert first.id != second.id
    assert parse_place("", "", (), None, None, None).slice is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("", "", (), "v5litepod-17", None, None), "--tpu: 'v5litepod-17' is not accepted; there are v5litepod-1,"),
        (("", "", (), "v5litepod-16", None, 0), "--slice: .*4 hosts"),
        (("", "", (), "v5litepod-16", "blue", None), "--worker: .*4 hosts"),
        (("", "", (), "v5litepod-16", "blue", 4), "--worker: 4 .*from 0 to 3"),
        (("", "", (), "v5litepod-16", "blue", -1), "--worker: -1"),
        (("", "", (), "v5litepod-4", None, 1), "--worker: 1 .*from 0 to 0"),
        (("", "", (), "v5litepod-16", "a/b", 0), "--slice: 'a/b'"),
        (("", "", (), None, "blue", None), "--slice: 'blue' .*--tpu"),
        (("", "", (), None, None, 0), "--worker: 0 .*--tpu"),
        (("a zone", "", (), None, None, None), "--zone: 'a zone'"),
        (("", "a/region", (), None, None, None), "--region: 'a/region'"),
        (("", "", ("disk",), None, None, None), "--label: 'disk'"),
        (("", "", ("=ssd",), None, None, None), "--label: '=ssd'"),
    ],
)
def test_what_cannot_be_is_refused(given: tuple[str, str, tuple[str, ...], None, None, None], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_place(*given)


def test_a_host_has_gpus_or_a_tpu() -> None:
    with pytest.raises(InvalidInput, match=r"--gpus: '8' .*--tpu"):
        capacity_of(None, None, "8", "v5litepod-4")


def test_a_machine_has_the_name_that_its_provider_was_given() -> None:
    assert [checked_machine(name) for name in ("", "m0kq1")] == ["", "m0kq1"]
    with pytest.raises(InvalidInput, match=r"--machine: 'a/b' .*fray machines"):
        checked_machine("a/b")

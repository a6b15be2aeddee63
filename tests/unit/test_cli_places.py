"""The place of its host that `fray agent` reports, and the TPU slice that the host is in."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fray.cli import cli
from fray.cli.commands import agent
from fray.cli.commands.agent import capacity_of, checked_machine
from fray.cli.options import parse_place
from fray_agents.agent import daemon
from fray_agents.agent.agent import AgentOptions
from fray_layouts.errors import InvalidInput
from fray_layouts.records import SliceMember
from tests.support.metadata_server import metadata_server, tpu_vm


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
def test_an_impossible_place_is_refused(
    given: tuple[str, str, tuple[str, ...], None, None, None], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_place(*given)


def test_a_host_has_gpus_or_a_tpu() -> None:
    with pytest.raises(InvalidInput, match=r"--gpus: '8' .*--tpu"):
        capacity_of(None, None, "8", "v5litepod-4")


def test_a_machine_has_the_name_that_its_provider_was_given() -> None:
    assert [checked_machine(name) for name in ("", "m0kq1")] == ["", "m0kq1"]
    with pytest.raises(InvalidInput, match=r"--machine: 'a/b' .*fray machines"):
        checked_machine("a/b")


def options_of_agent(monkeypatch: pytest.MonkeyPatch, root: Path, metadata: str, *words: str) -> AgentOptions:
    """The options with which `fray agent` would run an agent."""
    ran: list[AgentOptions] = []

    async def run_agent(root: str, options: AgentOptions, on_join: object) -> None:
        ran.append(options)

    monkeypatch.setattr(daemon, "run_agent", run_agent)
    monkeypatch.setattr(agent, "log_to_stderr", lambda form: None)  # otherwise the variable would stay for other tests
    done = CliRunner(env={"GCE_METADATA_HOST": metadata}).invoke(cli, ["agent", "--root", str(root), *words])
    assert done.exit_code == 0, done.output
    return ran[0]


def test_on_the_vm_of_a_tpu_an_agent_needs_no_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    instance = tpu_vm(fray_pool="tpus", fray_machine="m1", fray_labels="disk=ssd,rack=a")
    instance["scheduling"]["preemptible"] = "TRUE"
    with metadata_server(instance) as server:
        told = options_of_agent(monkeypatch, tmp_path / "root", server.host)
        given = options_of_agent(
            monkeypatch, tmp_path / "root", server.host, "--pool", "own", "--zone", "here", "--label", "rack=b"
        )
    assert (told.pool, told.machine, told.preemptible) == ("tpus", "m1", True)
    assert (told.place.zone, told.place.region) == ("us-east5-a", "us-east5")
    assert told.place.slice == SliceMember(id="blue-6502082742571311568", type="v5litepod-16", index=2, hosts=4)
    assert told.capacity is not None
    assert (told.capacity.device, told.capacity.device_count) == ("tpu-v5litepod-16", 4)
    assert told.end_of_host is not None
    assert (given.pool, given.place.zone, given.place.labels) == ("own", "here", {"disk": "ssd", "rack": "b"})


def test_a_metadata_server_that_is_away_leaves_it_to_the_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with metadata_server(tpu_vm()) as server:
        server.status = 503
        options = options_of_agent(monkeypatch, tmp_path / "root", server.host, "--zone", "here")
    assert (options.pool, options.place.zone, options.place.slice) == ("default", "here", None)
    assert "only the options say where this host is" in caplog.text

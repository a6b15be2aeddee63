"""The provider `command`: the arguments that programs get, and the meaning of each of their failures."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fray.machine_pools import read_fray_file
from fray_agents.provisioning.identity import CLUSTER_LABEL, pool_labels, provider_name
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_agents.provisioning.provider_opening import open_provider
from fray_agents.provisioning.providers import command
from fray_agents.provisioning.providers.command import CommandProvider
from fray_coordinator.core import open_core
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_layouts.records import CommandSettings, ProvisioningSpec
from tests.support.provider_worlds import CLUSTER, EXAMPLES, POOL, script, slurm_world

FIRST, SECOND = "m0aaaaaaaaaaaaa1", "m0aaaaaaaaaaaaa2"
NAME = provider_name(CLUSTER, POOL, FIRST)


def spec_of(
    list: list[str] | None = None, create: list[str] | None = None, delete: list[str] | None = None, timeout: float = 60
) -> ProvisioningSpec:
    settings = CommandSettings(
        list=list or ["true"], create=create or ["true"], delete=delete or ["true"], timeout=timeout
    )
    return ProvisioningSpec(provider="command", machine_type="big", spot=True, command=settings)


def provider_of(spec: ProvisioningSpec) -> CommandProvider:
    return CommandProvider(CLUSTER, POOL, spec)


def asked(spec: ProvisioningSpec, *names: str, hosts: int = 1) -> MachineRequest:
    return MachineRequest(
        pool=POOL, names=names, zone="lab", spec=spec, root="gs://b/c d", hosts=hosts, labels={"a": "b"}
    )


async def failure(list: list[str], timeout: float = 60) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await provider_of(spec_of(list=list, timeout=timeout)).list()
    return caught.value


async def test_create_is_told_all_that_a_machine_needs(tmp_path: Path) -> None:
    spec = spec_of(create=script('env | grep ^FRAY_ | sort >"$1"', str(tmp_path / "told")))
    await provider_of(spec).create(asked(spec, FIRST))
    told = dict(line.split("=", 1) for line in (tmp_path / "told").read_text().splitlines() if "=" in line)
    assert told.pop("FRAY_AGENT") == (
        f"fray agent --root 'gs://b/c d' --pool workers --machine {FIRST} --label a=b --preemptible"
    )
    assert {name: told[name] for name in ("FRAY_NAME", "FRAY_MACHINE", "FRAY_BATCH", "FRAY_POOL", "FRAY_CLUSTER")} == {
        "FRAY_NAME": NAME,
        "FRAY_MACHINE": FIRST,
        "FRAY_BATCH": FIRST,
        "FRAY_POOL": POOL,
        "FRAY_CLUSTER": pool_labels(CLUSTER, POOL)[CLUSTER_LABEL],
    }
    assert (told["FRAY_ZONE"], told["FRAY_MACHINE_TYPE"], told["FRAY_SPOT"], told["FRAY_HOSTS"]) == (
        "lab",
        "big",
        "1",
        "1",
    )
    assert NAME.startswith(told["FRAY_PREFIX"])


async def test_each_host_of_a_machine_has_a_line() -> None:
    spec = spec_of(create=script('[ "$(printf "%s\\n" "$FRAY_AGENT" | wc -l)" = 2 ] && [ "$FRAY_HOSTS" = 2 ]'))
    await provider_of(spec).create(asked(spec, FIRST, hosts=2))


async def test_machines_are_listed_by_their_names_and_others_are_left_out() -> None:
    lines = [
        f'{{"name": "{NAME}", "state": "creating"}}',
        f'{{"name": "{NAME}", "state": "ready", "zone": "lab"}}',
        f'{{"name": "{NAME}", "state": "ending"}}',
        "",
        '{"name": "somebodys-job", "state": "ready"}',
        f'{{"name": "{provider_name(CLUSTER, POOL, SECOND)}", "state": "lost", "error": "preempted", "more": 1}}',
    ]
    listed = await provider_of(spec_of(list=["printf", "%s\n", *lines])).list()
    assert listed == [
        ListedMachine(POOL, FIRST, "lab", ListedState.READY),
        ListedMachine(POOL, SECOND, "", ListedState.LOST, error="preempted"),
    ]


@pytest.mark.parametrize("printed", ["JOBID NAME", "[]", '{"name": "a"}', '{"name": "a", "state": "R"}', "\\377"])
async def test_a_line_that_describes_no_machine_is_refused_and_quoted(printed: str) -> None:
    error = await failure(["printf", f"{printed}\\n"])
    assert error.kind == "invalid"
    assert "the command that lists machines (printf " in str(error)
    assert 'print a line such as {"name": "fray-...", "state": "ready"}' in str(error)


async def test_a_program_that_is_not_there_is_named() -> None:
    error = await failure(["/nowhere/list-machines", "--all"])
    assert error.kind == "denied"
    assert str(error) == (
        "the command that lists machines (/nowhere/list-machines --all) cannot be started on this host (No such file "
        "or directory); give the absolute path of a program, or the name of one in PATH, and scale where it is "
        "installed"
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [(69, "stockout"), (73, "quota"), (77, "denied"), (78, "invalid"), (1, "unavailable"), (75, "unavailable")],
)
async def test_a_program_that_fails_says_why_by_its_code_and_its_words(code: int, kind: str) -> None:
    error = await failure(script(f"echo nonsense; echo no nodes left >&2; exit {code}"))
    assert error.kind == kind
    assert str(error).endswith(f"failed with exit code {code}: no nodes left")


async def test_a_program_that_hangs_is_killed_with_all_that_it_started() -> None:
    error = await failure(script("sleep 1000 & sleep 1000"), timeout=0.05)
    assert error.kind == "unavailable"
    assert "did not end within 0.05 s and was killed" in str(error)
    assert "raise command.timeout" in str(error)


async def test_a_program_that_prints_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MAX_OUTPUT", 2**16)
    error = await failure(["yes"])
    assert error.kind == "invalid"
    assert "printed more than 65536 bytes" in str(error)


async def test_machines_of_a_request_that_fails_in_part_are_removed(tmp_path: Path) -> None:
    create = script('[ "$FRAY_MACHINE" = "$2" ] && exit 69; touch "$1/$FRAY_MACHINE"', str(tmp_path), SECOND)
    spec = spec_of(create=create, delete=script('rm "$1/$FRAY_MACHINE"', str(tmp_path)))
    with pytest.raises(ProviderError) as caught:
        await provider_of(spec).create(asked(spec, FIRST, SECOND))
    assert caught.value.kind == "stockout"
    assert not os.listdir(tmp_path)


async def test_a_pool_without_commands_or_of_an_unknown_provider_is_refused() -> None:
    core = await open_core("memory://command-provider")
    for provider, words in (("command", "list, create and delete"), ("slurm", "there is no provider 'slurm'")):
        with pytest.raises(ProviderError, match=words) as caught:
            await open_provider(core, POOL, ProvisioningSpec(provider=provider))
        assert caught.value.kind == "invalid"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "quota"),
        ("Invalid account or account/partition combination specified", "denied"),
        ("Access/permission denied", "denied"),
        ("User's group not permitted to use this partition", "denied"),
        ("Required partition not available (inactive or drain)", "stockout"),
        ("Invalid partition name specified", "invalid"),
        ("Requested node configuration is not available", "invalid"),
        ("Unable to contact slurm controller (connect failure)", "unavailable"),
    ],
)
async def test_refusals_of_slurm_have_their_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, kind: str
) -> None:
    with slurm_world(tmp_path, monkeypatch) as world:
        (tmp_path / "kept" / "refusal").write_text(f"sbatch: error: Batch job submission failed: {words}")
        with pytest.raises(ProviderError, match=re.escape(words)) as caught:
            await provider_of(world.spec).create(asked(world.spec, FIRST))
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("state", "listed"),
    [("PENDING", "waiting"), ("CONFIGURING", "creating"), ("COMPLETING", "ending"), ("NODE_FAIL", "lost")],
)
async def test_states_of_slurms_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, listed: str) -> None:
    with slurm_world(tmp_path, monkeypatch) as world:
        provider = provider_of(world.spec)
        await provider.create(asked(world.spec, FIRST))
        [job] = (tmp_path / "kept").iterdir()
        job.write_text(state)
        assert [machine.state for machine in await provider.list()] == [listed]


@pytest.mark.parametrize("name", ["slurm", "kubernetes"])
def test_the_examples_pools_are_read(name: str) -> None:
    [pool] = read_fray_file(EXAMPLES / name / "fray.yaml")
    assert pool in ("cluster", "pods")


async def test_programs_get_no_secrets_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_CLOUD_SECRET", "hunter2")
    monkeypatch.setenv("FRAY_CLUSTER_SPEC", "gs://b/r")
    monkeypatch.setenv("KUBECONFIG", "/k")
    await provider_of(spec_of(list=script('env >"$1"', str(tmp_path / "told")))).list()
    told = {line.partition("=")[0] for line in (tmp_path / "told").read_text().splitlines()}
    own = {"FRAY_CLUSTER", "FRAY_POOL", "FRAY_PREFIX"}
    assert own < told
    assert "KUBECONFIG" in told
    assert told <= own | {*command.PASSED_ON} | {"PWD", "OLDPWD", "SHLVL", "_"}, "which the shell sets"

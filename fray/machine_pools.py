"""Pools of machines that come and go: reads the file `fray.yaml`, and reads and writes the pools' records.

from fray.machine_pools import set_pool

set_pool("gs://bucket/team", "small", provider="local", max=4)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from fray import sync
from fray.workspace.upload import StoredWorkspace, store_workspace
from fray.written_files import naming, read_documents
from fray_agents.host.capacity import host_name
from fray_agents.provisioning.prices import hourly_cost, similar_zone, unpriced
from fray_coordinator.core import Core, open_core
from fray_coordinator.jobs.pools import change_pool, read_machines, read_pools
from fray_coordinator.protocol.scaling.provisioning import ScalingScope
from fray_coordinator.store.opening import root_url
from fray_layouts.errors import InvalidInput
from fray_layouts.pool_file import PoolToSet, WarmEnvironment, parse_fray_file, parse_pool
from fray_layouts.records import AgentPoolRecord, ProvisioningSpec, Resources
from fray_layouts.spec import EnvironmentSpec
from fray_layouts.spec_parsing import parse_spec
from fray_layouts.states import MachineState
from fray_layouts.units import first_names

T = TypeVar("T")

FRAY_FILE = "fray.yaml"

_set_here: dict[str, dict[str, ProvisioningSpec]] = {}
"""By root, the pools that this program has set."""


def set_pool(root: str, pool: str, **fields: Any) -> ProvisioningSpec:
    """Set which machines a pool may have. It replaces the earlier settings; returns the settings as they are stored.

    This program makes and removes the pool's machines while it waits, like those of the pools in `fray.yaml`.

    Args:
        root: root of the cluster, which is created if it does not exist.
        pool: the pool's name.
        fields: the fields that `fray.yaml` has below a pool's name.

    Raises:
        InvalidInput: a field is wrong or unknown.
    """
    wanted = parse_pool(fields)
    spec = _on(root, lambda core: write_pool(core, pool, wanted, Path()), create=True)
    _set_here.setdefault(root_url(root), {})[pool] = spec
    return spec


def get_pool(root: str, pool: str) -> ProvisioningSpec | None:
    """Read which machines a pool may have; None if it is not a pool of machines, so that people start its agents.

    Args:
        root, pool: as for `set_pool`.
    """
    record = _on(root, lambda core: read_pools(core, {}), create=False).get(pool)
    return record.provisioning if record is not None else None


def _on(root: str, work: Callable[[Core], Coroutine[Any, Any, T]], create: bool) -> T:
    async def run() -> T:
        core = await open_core(root, create=create)
        try:
            return await work(core)
        finally:
            await core.store.close()

    return sync.run(run())


def read_fray_file(path: Path) -> dict[str, PoolToSet]:
    """Read and check the pools of a file. Raises InvalidInput if it is not YAML or a field is wrong."""
    documents = read_documents(path.read_text(errors="replace"), str(path))
    with naming(str(path)):
        pools = parse_fray_file(documents[0] if len(documents) == 1 else None)
        for name, pool in pools.items():
            try:
                check_prices(pool.provisioning)
            except InvalidInput as error:
                raise InvalidInput(f"pools.{name}.{error.field}", error.value, error.remedy) from None
        return pools


def described_pools(root: str) -> ScalingScope:
    """The pools that the user describes: in `fray.yaml` in the current directory, or by `set_pool` in this program.

    Args:
        root: root of the cluster.

    Raises:
        InvalidInput: the file is wrong, as for `read_fray_file`.
    """
    path = Path(FRAY_FILE)
    pools = read_fray_file(path) if path.is_file() else {}
    described = {name: _on_this_host(pool.provisioning) for name, pool in pools.items()}
    return ScalingScope(described=described | _set_here.get(root_url(root), {}))


async def write_pool(
    core: Core,
    name: str,
    pool: PoolToSet,
    base: Path,
    on_stored: Callable[[StoredWorkspace], None] = lambda stored: None,
) -> ProvisioningSpec:
    """Write a pool's settings to its record. Folders of environments are relative to `base`.

    on_stored: called with each workspace of the environments once it is in the storage.
    """
    check_prices(pool.provisioning)
    spec = _on_this_host(pool.provisioning)
    kept = None
    if pool.environments is not None:
        kept = [await store_environment(core, each, base, on_stored) for each in pool.environments]

    def decide(record: AgentPoolRecord) -> AgentPoolRecord | None:
        wanted = replace(record, provisioning=spec, environments=record.environments if kept is None else kept)
        return None if wanted == record else wanted

    await change_pool(core, name, decide)
    return spec


async def remove_pool(core: Core, name: str) -> None:
    """Turn a pool of machines into one whose agents people start.

    Raises InvalidInput if it still has machines, or is not a pool of machines.
    """
    record = (await read_pools(core, {})).get(name)
    if record is None or record.provisioning is None:
        raise InvalidInput("pool", name, "there is no such pool of machines; `fray pool ls` lists them")
    problems: dict[str, str] = {}
    left = [machine.record for machine in await read_machines(core, problems, name)]
    alive = [machine.name for machine in left if machine.state != MachineState.GONE]
    if alive or problems:
        remedy = "first run `fray pool set NAME --min 0 --max 0`, and wait until they are gone"
        raise InvalidInput("pool", name, f"it has machines ({first_names([*alive, *problems], 3)}); {remedy}")
    await change_pool(core, name, lambda record: replace(record, provisioning=None))


def check_prices(spec: ProvisioningSpec) -> None:
    """Raise InvalidInput if the pool's cost limit needs an unknown price, or does not allow the pool's minimum."""
    limit = spec.max_hourly_cost
    if limit is None:
        return
    if unknown := unpriced(spec):
        raise InvalidInput("hourly_cost", None, f"max_hourly_cost needs it, as {_unknown_price(spec, unknown[0])}")
    dearest = max(hourly_cost(spec, zone) or 0.0 for zone in spec.zones or [""])
    if dearest > limit:
        raise InvalidInput("max_hourly_cost", limit, f"one machine costs up to ${dearest:,.2f} an hour; raise it")
    if dearest * spec.min > limit:
        problem = f"so many machines cost up to ${dearest * spec.min:,.2f} an hour, above the limit"
        raise InvalidInput("min", spec.min, problem)


def price_warnings(spec: ProvisioningSpec) -> list[str]:
    """A warning for each zone where the price of the pool's machines is unknown, with the remedy."""
    return [_unknown_price(spec, zone) for zone in unpriced(spec)]


def _unknown_price(spec: ProvisioningSpec, zone: str) -> str:
    near = similar_zone(spec, zone)
    hint = f"did you mean {near}? If the zone is right, give" if near else "give"
    where = f" in {zone}" if zone else ""
    return (
        f"the price of {spec.machine_type or 'a machine'}{where} is unknown; {hint} dollars an hour of one machine as "
        "hourly_cost"
    )


def _on_this_host(spec: ProvisioningSpec) -> ProvisioningSpec:
    """Name this host in a local pool, since another host may run the pool's scaler."""
    if spec.provider != "local":
        return spec
    return replace(spec, zones=[host_name()])


def written_pool(spec: ProvisioningSpec) -> dict[str, Any]:
    """The pool's fields in the form of `fray.yaml`. `parse_pool` turns them into the same pool again."""
    fields: dict[str, Any] = msgspec.to_builtins(spec)
    if spec.provider == "local":
        fields.pop("zones", None)
    if spec.capacity is not None:
        fields["capacity"] = _written_capacity(spec.capacity)
    return fields


def _written_capacity(has: Resources) -> dict[str, Any]:
    kind, _, variant = has.device.partition("-")
    device = {"kind": kind, "variant": variant, "count": has.device_count} if kind else None
    amounts = {"cpu": has.cpu / 1000, "memory": has.memory, "disk": has.disk, "device": device}
    return {name: amount for name, amount in amounts.items() if amount}


async def store_environment(
    core: Core, written: WarmEnvironment, base: Path, on_stored: Callable[[StoredWorkspace], None]
) -> EnvironmentSpec:
    """Store the workspace of an environment that agents build in advance, and return the environment's spec.

    Raises InvalidInput if something in it is wrong.
    """
    from fray.workspace.choice import named_workspace

    fields = {
        "extras": written.extras,
        "groups": written.groups,
        "pip_packages": written.pip_packages,
        "docker_image": written.docker_image,
    }
    job = {"name": "warm", "entrypoint": {"command": ["true"]}}
    parse_spec({**job, "environment": fields})  # check first, so that a mistake uploads nothing
    if not written.workspace:
        return parse_spec({**job, "environment": fields}).environment
    choice = named_workspace(written.workspace, base)
    folder = choice.find() if choice is not None else None
    assert folder is not None, "`find` refuses a named folder that does not exist"
    stored = await store_workspace(core, folder)
    on_stored(stored)
    checked = parse_spec({**job, "environment": {**fields, "python": stored.python}})
    return replace(checked.environment, workspace=stored.spec)

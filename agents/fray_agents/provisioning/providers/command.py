"""The provider `command`: the user's programs list, create and remove machines; see `docs/command-machines.md`.

It finds a machine by the name that it gave to the program, so programs need not store anything else.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from fray_agents.host.processes import kill_group
from fray_agents.provisioning.identity import (
    CLUSTER_LABEL,
    POOL_LABEL,
    agent_arguments,
    machine_of,
    name_prefix,
    pool_labels,
    provider_name,
)
from fray_agents.provisioning.provider import MachineRequest, ProviderError
from fray_coordinator.protocol.scaling.view import ListedMachine, ListedState
from fray_layouts.records import ProvisioningSpec
from fray_runtime.forks import start_process

PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "KUBECONFIG", "SLURM_CONF")
"""The variables of this process that programs get: enough to find other programs and their settings, and no secrets."""

KINDS = {69: "stockout", 73: "quota", 77: "denied", 78: "invalid"}
"""Exit codes, as in `sysexits.h`, and the kind of error they mean; after any other code the outcome is not known."""

MAX_OUTPUT = 16 * 2**20
"""Most bytes that a program may print: a hundred thousand machines."""
DRAIN_TIMEOUT = 5.0
"""Seconds to read the rest of a killed program's output: only a process that left its group can delay that."""
_QUOTED = 200
"""Most characters of a program's command, output or error that a message quotes: two lines of a terminal."""

_STATE_ORDER = (
    ListedState.READY,
    ListedState.CREATING,
    ListedState.WAITING,
    ListedState.ENDING,
    ListedState.LOST,
)
"""States in the order in which they count if two machines have one name, as when a repeated `create` made two jobs."""


class _Printed(msgspec.Struct):
    """A line of the output of the program `list`."""

    name: str
    state: ListedState
    zone: str = ""
    error: str = ""


class CommandProvider:
    """Machines of one pool, created by programs."""

    def __init__(self, cluster: str, pool: str, spec: ProvisioningSpec) -> None:
        if spec.command is None:
            raise ProviderError("invalid", f"pool {pool}: the provider command needs command: list, create and delete")
        self._cluster = cluster
        self._pool = pool
        self._settings = spec.command

    async def list(self) -> Sequence[ListedMachine]:
        printed = await self._run("list", self._settings.list, {})
        found: dict[str, ListedMachine] = {}
        for line in self._parsed(printed):
            name = machine_of(line.name, self._cluster, self._pool)
            if name is None:
                continue  # another pool's or somebody else's
            known = found.get(name)
            if known is None or _STATE_ORDER.index(line.state) < _STATE_ORDER.index(known.state):
                billed = line.state is not ListedState.WAITING
                found[name] = ListedMachine(self._pool, name, line.zone, line.state, error=line.error, billed=billed)
        return list(found.values())

    async def create(self, request: MachineRequest) -> str:
        """Run the program for each machine; if one is refused, the machines before it are removed again."""
        for number, name in enumerate(request.names):
            try:
                await self._run(
                    "create", self._settings.create, self._name_variables(name) | _request_variables(request, name)
                )
            except ProviderError:
                for made in request.names[:number]:
                    with suppress(ProviderError):
                        await self.delete(made, request.zone)
                raise
        return ""

    async def delete(self, name: str, zone: str, batch: str = "") -> None:
        await self._run("delete", self._settings.delete, {**self._name_variables(name), "FRAY_ZONE": zone})

    async def check(self) -> Sequence[ProviderError]:
        """Run the program `list`, and check that the other programs exist."""
        commands = {"create": self._settings.create, "delete": self._settings.delete}
        found = [
            _unstartable(_described(action, command), "there is no such program")
            for action, command in commands.items()
            if shutil.which(command[0]) is None
        ]
        try:
            await self.list()
        except ProviderError as error:
            found.insert(0, error)
        return found

    async def close(self) -> None:
        pass

    def _name_variables(self, machine: str) -> dict[str, str]:
        name = provider_name(self._cluster, self._pool, machine)
        return {"FRAY_NAME": name, "FRAY_MACHINE": machine}

    def _parsed(self, printed: bytes) -> Iterable[_Printed]:
        for line in printed.splitlines():
            if not line.strip():
                continue
            try:
                yield msgspec.json.decode(line, type=_Printed)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                quoted = line[:_QUOTED].decode(errors="replace")
                raise ProviderError(
                    "invalid",
                    f"{_described('list', self._settings.list)} printed {quoted!r} ({error}); print a line such as "
                    '{"name": "fray-...", "state": "ready"} for each machine, and nothing else on stdout',
                ) from None

    async def _run(self, action: str, command: Sequence[str], variables: Mapping[str, str]) -> bytes:
        """The program's output. Raises ProviderError: it failed, or did not end in time."""
        labels = pool_labels(self._cluster, self._pool)
        own = {
            "FRAY_CLUSTER": labels[CLUSTER_LABEL],
            "FRAY_POOL": labels[POOL_LABEL],
            "FRAY_PREFIX": name_prefix(self._cluster, self._pool),
        }
        called = _described(action, command)
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        process = await _start_program(called, command, {**passed_on, **own, **variables})
        try:
            async with asyncio.timeout(self._settings.timeout):
                printed, said, code = await asyncio.gather(
                    _read(called, process.stdout), _read(called, process.stderr), process.wait()
                )
        except TimeoutError:
            await _kill_program(process)
            raise ProviderError(
                "unavailable",
                f"{called} did not end within {self._settings.timeout:g} s and was killed; "
                f"{'have it return before the machine is there, or ' * (action == 'create')}raise command.timeout",
            ) from None
        except BaseException:
            await _kill_program(process)
            raise
        if code:
            words = said.decode(errors="replace").strip()[-_QUOTED:] or "it printed nothing on stderr"
            raise ProviderError(KINDS.get(code, "unavailable"), f"{called} failed with exit code {code}: {words}")
        return printed


def _described(action: str, command: Sequence[str]) -> str:
    return f"the command that {action}s machines ({shlex.join(command)[:_QUOTED]})"


def _request_variables(request: MachineRequest, machine: str) -> dict[str, str]:
    agents = (["fray", *agent_arguments(request, machine, host)] for host in range(request.hosts))
    return {
        "FRAY_BATCH": request.names[0],
        "FRAY_ZONE": request.zone,
        "FRAY_MACHINE_TYPE": request.spec.machine_type,
        "FRAY_SPOT": "1" if request.spec.spot else "",
        "FRAY_HOSTS": str(request.hosts),
        "FRAY_AGENT": "\n".join(map(shlex.join, agents)),
    }


async def _start_program(
    called: str, command: Sequence[str], environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """Start the program in a process group of its own. Raises ProviderError: it cannot be started."""
    try:
        return await start_process(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise _unstartable(called, str(error.strerror)) from None


def _unstartable(called: str, why: str) -> ProviderError:
    return ProviderError(
        "denied",
        f"{called} cannot be started on this host ({why}); give the absolute path of a program, or the name of one in "
        "PATH, and scale where it is installed",
    )


async def _kill_program(process: asyncio.subprocess.Process) -> None:
    """Kill the program and all processes in its group, and drop the rest of its output.

    The output must be read to its end, because asyncio reports the end of a program only after the end of its pipes.
    """
    kill_group(process)
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_TIMEOUT):
            for stream in (process.stdout, process.stderr):
                while stream is not None and await stream.read(2**16):
                    pass


async def _read(called: str, stream: asyncio.StreamReader | None) -> bytes:
    """All output of a program. Raises ProviderError: it is too much."""
    assert stream is not None
    parts = bytearray()
    while part := await stream.read(2**16):
        parts += part
        if len(parts) > MAX_OUTPUT:
            raise ProviderError("invalid", f"{called} printed more than {MAX_OUTPUT} bytes; print a line a machine")
    return bytes(parts)

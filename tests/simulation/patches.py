"""Replaces parts of the operating system in the real code while a world runs, and nothing else."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from fray_agents.agent import agent as agent_module, daemon as serve_module, driver as driver_module, voting
from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.agent.driver import DriverLease
from fray_agents.host import agent_lock
from fray_coordinator.core import Core
from fray_layouts import codec
from fray_runtime.network import FIRST_PORT, LAST_PORT, HeldPorts
from tests.simulation.loop import OWNER

if TYPE_CHECKING:
    from tests.simulation.world import World


@contextmanager
def replaced(world: World) -> Iterator[None]:
    """Use host names and the folder of host locks of the simulated host, and let `serve` open the simulated store.

    Decoding a record may raise if the world wants it. The logs of agents are not shown.
    """

    class Noted(Agent):
        """An agent that registers with the world."""

        def __init__(self, core: Core, options: AgentOptions) -> None:
            super().__init__(core, options)
            world.made(self)

    class Driven(DriverLease):
        """A driver's lease that registers with the world."""

        def __init__(self, core: Core, namespace: str, user: str, program: str) -> None:
            super().__init__(core, namespace, user, program)
            world.drives(self)

    async def open_core(root: str) -> Core:
        host = world.here()
        return await world.core(OWNER.get(), host.clock, host.newer)

    real_decode = codec.decode

    def decode(data: bytes, kind: Any) -> Any:
        world.mishap("decoding")
        return real_decode(data, kind)

    with tempfile.TemporaryDirectory(prefix="fray-sim-") as folder:

        def lock_folder(root: str) -> Path:
            return Path(folder) / world.here().name

        class HostStarts:
            """Starts the tasks of the simulated host; no process waits for the next one."""

            def __init__(self, *given: object) -> None:
                self.start = world.here().start_task

            async def close(self) -> None:
                """Do nothing: no process waits."""

        class Deaf:
            """A listener without hints, which would travel outside of virtual time; losing them costs only latency."""

            endpoint = None

            def __init__(self, *given: object) -> None:
                """Do nothing: it does not listen."""

            def listen(self, agent: Agent) -> None:
                """Do nothing: it gets no hints."""

            def close(self) -> None:
                """Do nothing: nothing is open."""

        @contextmanager
        def held_ports(names: Iterable[str], rng: Any) -> Iterator[HeldPorts]:
            """The ports of the simulated host."""
            yield HeldPorts({name: rng.randint(FIRST_PORT, LAST_PORT) for name in names}, ())

        names = SimpleNamespace(gethostname=lambda: world.here().name)
        with (
            mock.patch.object(logging.getLogger("fray"), "disabled", True),
            mock.patch.object(codec, "decode", decode),
            mock.patch.object(agent_module, "socket", names),
            mock.patch.object(agent_module, "lack_of_room", return_value=""),
            mock.patch.object(driver_module, "socket", SimpleNamespace(gethostname=lambda: OWNER.get().name)),
            mock.patch.object(driver_module, "DriverLease", Driven),
            mock.patch.object(agent_lock, "lock_folder", lock_folder),
            mock.patch.object(agent_lock.AgentLock, "work_dir", lambda lock, disk: disk / lock.path.stem),
            mock.patch.object(serve_module, "open_core", open_core),
            mock.patch.object(serve_module, "Agent", Noted),
            mock.patch.object(serve_module, "Prestarter", HostStarts),
            mock.patch.object(serve_module.task_cgroups, "claim_prefix", return_value=""),
            mock.patch.object(serve_module, "HintListener", Deaf),
            mock.patch.object(voting, "held_ports", held_ports),
        ):
            yield

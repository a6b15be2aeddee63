"""`fray agent`: an agent as a process, which handles signals and joins again after it was declared dead."""

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fray_agents.agent.agent import Agent, AgentOptions, EndOfHost, ExitReason
from fray_agents.agent.hint_listener import ClusterKeys, HintListener
from fray_agents.agent.pool_notices import PlacementHints
from fray_agents.agent.problems import LogThrottle, is_set_within
from fray_agents.host import task_cgroups
from fray_agents.tasks.prestart import Prestarter
from fray_coordinator.concurrency import keep_running, start_task
from fray_coordinator.core import Core, open_core
from fray_runtime.directories import UntrustedDirectory, is_shortage

log = logging.getLogger("fray")

RETRY_INTERVAL = 5.0
"""Seconds between two tries to create an agent's directory and lock: a full disk is freed by people."""


@dataclass(slots=True)
class Departure:
    """Makes the process leave: at a signal, or before its host ends.

    Attributes:
        asked: the process is to leave.
        agent: the agent that runs now; None between two of them.
    """

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    agent: Agent | None = None
    _signals: int = 0

    def signalled(self) -> None:
        """Leave; at a second signal at once. After a notice that the host ends, the first signal changes nothing."""
        self._signals += 1
        if self._signals > 1 or not self.asked.is_set():
            self._leave()

    def hung_up(self) -> None:
        """Leave because the terminal is gone. A second SIGHUP changes nothing: kernel and shell may both send one."""
        if not self.asked.is_set():
            self._leave()

    async def heed(self, end_of_host: EndOfHost) -> None:
        """Leave as at the first signal once the host is about to end."""
        why = await end_of_host()
        if not self.asked.is_set():
            log.warning("%s: the agent leaves", why)
            self._leave()

    def _leave(self) -> None:
        self.asked.set()
        if self.agent is not None:
            self.agent.terminate()


async def run_agent(root: str, options: AgentOptions, on_join: Callable[[str], None] = lambda agent_id: None) -> None:
    """Serve the cluster under `root` until a signal, or until its host ends. A second SIGTERM or SIGINT exits at once.

    Args:
        on_join: called with the id under which the agent joins; again after it was declared dead.

    Raises:
        RootMismatch, StoreRefused, StoreUnavailable: the cluster cannot be opened.
        UntrustedDirectory: this user has no directory of its own on this host. If the disk is full, this waits.
    """
    core = await open_core(root)
    loop = asyncio.get_running_loop()
    listener = HintListener(core, options.network) if options.network.inbound else None
    prestarter = Prestarter(options.preload, task_cgroups.claim_prefix())
    endpoint = listener.endpoint if listener else None
    hints = PlacementHints(ClusterKeys(core, loop))
    options = replace(
        options, start_task=prestarter.start, hint_endpoint=endpoint, send_hints=hints.send, ask_peer=hints.ask
    )
    departure = Departure()
    notice = _start_heeding(departure, options.end_of_host) if options.end_of_host else None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, departure.signalled)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        loop.add_signal_handler(signal.SIGHUP, departure.hung_up)
    try:
        while not departure.asked.is_set():
            agent = departure.agent = await _created_agent(core, options, departure.asked)
            if agent is None:
                return
            if listener is not None:
                listener.listen(agent)
            on_join(agent.id)
            if await agent.run() is ExitReason.LEFT:
                log.info("%s has left", agent.id)
                return
            log.warning("%s was declared dead: this host joins the cluster again", agent.id)
            options = replace(options, rejoins=True)
    finally:
        if notice is not None:
            notice.cancel()
        hints.close()
        await prestarter.close()
        if listener is not None:
            listener.close()
        await core.store.close()


def _start_heeding(departure: Departure, end_of_host: EndOfHost) -> asyncio.Task[None]:
    return start_task(keep_running(lambda: departure.heed(end_of_host)))


async def _created_agent(core: Core, options: AgentOptions, leaving: asyncio.Event) -> Agent | None:
    """A new agent, once this host has room for it; None if the process is to leave before that."""
    warnings = LogThrottle(core.clock)
    while not leaving.is_set():
        try:
            return Agent(core, options)
        except (OSError, UntrustedDirectory) as error:
            if not options.rejoins and not is_shortage(error):
                raise
            warnings.warn("this host cannot take an agent yet: %s", error)
        await is_set_within(leaving, core.jittered(RETRY_INTERVAL))
    return None

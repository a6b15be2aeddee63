"""An agent in a process of its own; when it ends, it prints what claiming cost and its requests to the storage."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from fray.cluster.prestart import PRESTART_MODULES
from fray_agents.agent.agent import Agent, AgentOptions
from fray_agents.tasks.prestart import Prestarter
from fray_coordinator.core import open_core
from fray_layouts.records import Resources


async def main(root: str, work_dir: Path, cores: float) -> None:
    core = await open_core(root)
    loop = asyncio.get_running_loop()
    capacity = Resources(cpu=int(cores * 1000), memory=2**40, disk=2**40)
    prestarter = Prestarter(PRESTART_MODULES)
    agent = Agent(core, AgentOptions(capacity=capacity, work_dir=work_dir, start_task=prestarter.start))
    loop.add_signal_handler(signal.SIGTERM, agent.terminate)
    loop.add_reader(sys.stdin, agent.terminate)  # end of input: the bench has ended
    print(json.dumps({"id": agent.id}), flush=True)
    await agent.run()
    await prestarter.close()
    print(json.dumps({"claims": asdict(agent.claim_counts), "requests": asdict(core.store.usage)}), flush=True)
    await core.store.close()


asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))

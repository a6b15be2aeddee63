"""Agent processes, which the fakes of Google Cloud start as the hosts of their machines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from google.cloud import tpu_v2

from fray_layouts.topology import get_tpu_topology


@dataclass
class BootedAgents:
    """All started processes, by the machine's name."""

    of_machine: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)

    def start(self, arguments: list[str]) -> Callable[[], None]:
        """Run `fray` with these arguments, which name a machine; return a function that ends it at once."""
        process = subprocess.Popen([sys.executable, "-m", "fray", *arguments])
        self.of_machine.setdefault(arguments[arguments.index("--machine") + 1], []).append(process)

        def stop() -> None:
            process.kill()
            process.wait()

        return stop

    def start_hosts(self, node: tpu_v2.Node) -> Callable[[], None]:
        """Start the hosts of a TPU slice, with the place that their metadata says."""
        told = node.metadata
        name = node.name.rpartition("/")[2]
        several = told.get("fray-machines", "").split(",")
        machine = told.get("fray-machine", "") or several[int(name.rpartition("-")[2])]
        joins = ["agent", "--root", told["fray-root"], "--pool", told["fray-pool"], "--machine", machine]
        place = ["--tpu", node.accelerator_type, "--slice", name, "--no-inbound"]
        hosts = range(get_tpu_topology(node.accelerator_type).vm_count)
        stops = [self.start([*joins, *place, "--worker", str(number)]) for number in hosts]

        def stop() -> None:
            for each in stops:
                each()

        return stop

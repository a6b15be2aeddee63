"""`python -m tests.simulation`: run seeds of the simulation of jobs, or replay one."""

from __future__ import annotations

import sys

from tests.simulation.campaign import main
from tests.simulation.world import World

if __name__ == "__main__":
    sys.exit(main(World))

"""The program of the runner, started by path: makes the package importable, after the standard library, and runs it."""

import os.path
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from fray_agents.runner.supervisor import main

main(*sys.argv[1:])

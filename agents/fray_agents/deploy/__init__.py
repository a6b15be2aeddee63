"""The files by which a host gets its agent: a start-up script for VMs, a systemd unit, and a container."""

from pathlib import Path

UNIT = Path(__file__).with_name("fray-agent.service")
"""The systemd unit; the start-up script adds the cluster."""


def startup_script() -> str:
    """The start-up script of a VM of Google Cloud, for its metadata's `startup-script`."""
    return Path(__file__).with_name("startup.sh").read_text()

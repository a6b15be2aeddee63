"""The pipe to a runner on event loops other than asyncio's own."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from unittest import mock

from fray_agents.tasks.process_task import EVENT_LIMIT, _RunnerProtocol


async def test_a_transport_need_not_be_of_asyncios_classes() -> None:
    """Ray runs its actors on uvloop, whose transports are not."""
    protocol = _RunnerProtocol(EVENT_LIMIT, asyncio.get_running_loop())
    transport = mock.MagicMock(spec=["get_pipe_transport", "get_pid", "close"])
    protocol.connection_made(cast(Any, transport))
    protocol.process_exited()
    transport.get_pipe_transport.assert_any_call(1)

"""Checks a pool before its first machine is ordered: its provider's answers about zones, rights and quotas."""

import asyncio
from collections.abc import Sequence

from fray_agents.provisioning.opening import open_provider
from fray_agents.provisioning.provider import ProviderError
from fray_coordinator.core import Core
from fray_layouts.records import ProvisioningSpec

CHECK_SECONDS = 60.0
"""Most seconds to wait for a provider: a call of Google Cloud is given up after 45 s."""


async def check_pool(core: Core, pool: str, spec: ProvisioningSpec) -> Sequence[ProviderError]:
    """The problems that would keep machines of the pool from being created, as far as its provider tells this process.

    Problems of the kind "invalid" occur on every host; the others may be this host's, for example missing rights.
    """
    try:
        provider = await open_provider(core, pool, spec)
    except ProviderError as error:
        return [error]
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await provider.check()
    except TimeoutError:
        return [ProviderError("unavailable", f"{spec.provider} did not answer within {CHECK_SECONDS:.0f} s")]
    except ProviderError as error:
        return [error]
    finally:
        await provider.close()

"""Checks of a pool before its first machine is ordered: what its provider says of zones, rights and quotas."""

import asyncio
from collections.abc import Sequence

from fray_agents.provisioning.opening import open_provider
from fray_agents.provisioning.provider import ProviderError
from fray_coordinator.core import Core
from fray_layouts.records import ProvisioningSpec

CHECK_SECONDS = 60.0
"""After so long a provider is not waited for: a call of Google Cloud is given up after 45 s."""


async def check_pool(core: Core, pool: str, spec: ProvisioningSpec) -> Sequence[ProviderError]:
    """What keeps machines of the pool from being made, as far as its provider tells whoever asks here.

    Those of the kind "invalid" are wrong wherever the machines are made from; the others may be of this host.
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

"""Opens the provider of a pool by its name, and checks the pool with it before its first machine is ordered.

Only that provider's module is imported. The provider answers about zones, rights and quotas.
"""

import asyncio
from collections.abc import Sequence

from fray_agents.provisioning.provider import Provider, ProviderError
from fray_coordinator.core import Core
from fray_layouts.records import ProvisioningSpec


async def open_provider(core: Core, pool: str, spec: ProvisioningSpec) -> Provider:
    """The provider that creates the machines of a pool.

    Raises:
        ProviderError: there is no such provider, its library is not installed, or it does not accept our credentials.
    """
    cluster = core.identity
    try:
        match spec.provider:
            case "local":
                from fray_agents.provisioning.providers.local import LocalProvider

                return LocalProvider(cluster, pool, spec)
            case "command":
                from fray_agents.provisioning.providers.command import CommandProvider

                return CommandProvider(cluster, pool, spec)
            case "tpu":
                from fray_agents.provisioning.providers.tpu import open_tpu

                return await open_tpu(cluster, pool, spec)
            case "cloud_run":
                from fray_agents.provisioning.providers.cloud_run import open_cloud_run

                return await open_cloud_run(cluster, pool, spec)
    except ImportError as error:
        raise ProviderError(
            "denied", f"the provider {spec.provider} needs {error.name}; in a clone of Fray: pip install '.[google]'"
        ) from None
    raise ProviderError("invalid", f"there is no provider {spec.provider!r}; give local, tpu, cloud_run or command")


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

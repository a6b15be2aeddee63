"""See `fray.device_flops`; made by `make aliases`."""

from fray.device_flops import (
    DEVICE_FLOPS,
    FlopDtype,
    device_flops,
    device_flops_for_jax_device,
)

__all__ = [
    "DEVICE_FLOPS",
    "FlopDtype",
    "device_flops",
    "device_flops_for_jax_device",
]

"""Peak arithmetic of accelerators: floating-point operations per second of one chip, without sparsity.

Sources. The TPU pages were read in November 2026. The figures of the GPU datasheets come from copies by others.

- TPUs, "peak compute per chip" of https://docs.cloud.google.com/tpu/docs/v4, .../v5e, .../v5p and .../v6e.
- A100: NVIDIA's datasheet "A100 Tensor Core GPU" (nvidia-a100-datasheet-us-nvidia-1758950-r4), with Tensor Cores.
- H100 (SXM and PCIe) and H200 (SXM): NVIDIA's datasheets of these names, with Tensor Cores. They give the figures of
  TF32 and shorter types with sparsity, "1/2 lower without". The table has the halves.

The table has no figure that is not in these sources.
"""

from collections.abc import Mapping
from typing import Literal

from fray_layouts.errors import InvalidInput
from fray_layouts.topology import tpu_family

__all__ = ["DEVICE_FLOPS", "FlopDtype", "device_flops", "device_flops_for_jax_device"]

FlopDtype = Literal["bf16", "fp16", "fp32", "fp64", "tf32", "int8", "fp8"]

_T = 1e12  # "T" in "TFLOPS"
_A100 = {"fp64": 19.5 * _T, "fp32": 19.5 * _T, "tf32": 156 * _T, "fp16": 312 * _T, "bf16": 312 * _T, "int8": 624 * _T}
_H100_SXM = {
    "fp64": 67 * _T,
    "fp32": 67 * _T,
    "tf32": 989 / 2 * _T,
    "fp16": 1979 / 2 * _T,
    "bf16": 1979 / 2 * _T,
    "fp8": 3958 / 2 * _T,
    "int8": 3958 / 2 * _T,
}
_H100_PCIE = {
    "fp64": 51 * _T,
    "fp32": 51 * _T,
    "tf32": 756 / 2 * _T,
    "fp16": 1513 / 2 * _T,
    "bf16": 1513 / 2 * _T,
    "fp8": 3026 / 2 * _T,
    "int8": 3026 / 2 * _T,
}

DEVICE_FLOPS: Mapping[str, Mapping[str, float]] = {
    "v4": {"bf16": 275 * _T, "int8": 275 * _T},
    "v5e": {"bf16": 197 * _T, "int8": 393 * _T},
    "v5p": {"bf16": 459 * _T},
    "v6e": {"bf16": 918 * _T, "int8": 1836 * _T},
    **dict.fromkeys(("a100", "a100-40g", "a100-40gb", "a100-80g", "a100-80gb"), _A100),
    "h100": _H100_SXM,
    "h100-pcie": _H100_PCIE,
    "h200": _H100_SXM,
}
"""Peak operations per second, by TPU family or GPU type, and by data type."""

_JAX_KINDS = (
    *(("tpu v4", "v4"), ("tpu v5 lite", "v5e"), ("tpu v5e", "v5e"), ("tpu v5", "v5p"), ("tpu v6", "v6e")),
    *(("h100 pcie", "h100-pcie"), ("h100 80gb hbm3", "h100"), ("h200", "h200"), ("a100", "a100")),
)
"""Parts of JAX's `device_kind` with the device that each identifies. Longer, more specific parts come first."""


def device_flops(device_type: str, dtype: str = "bf16") -> float | None:
    """Peak floating-point operations per second of one chip, without sparsity; None if there is no figure.

    Args:
        device_type: a TPU family or type ("v5p", "v5p-16"), or a GPU type ("h100"), in upper or lower case.
        dtype: a `FlopDtype`; "amp_bf16" is the same as "bf16".
    """
    kind = device_type.lower()
    try:
        kind = tpu_family(kind)
    except InvalidInput:
        kind = "v5e" if kind == "v5litepod" else kind
    return DEVICE_FLOPS.get(kind, {}).get(dtype.lower().removeprefix("amp_"))


def device_flops_for_jax_device(jax_device_kind: str, dtype: str = "bf16") -> float | None:
    """Peak floating-point operations per second of one chip, by the name that JAX gives the device.

    Args:
        jax_device_kind: a `device_kind`, such as "TPU v5 lite" or "NVIDIA H100 80GB HBM3".
        dtype: as for `device_flops`.

    Returns:
        None if there is no figure for the device.
    """
    kind = jax_device_kind.lower()
    known = next((device for part, device in _JAX_KINDS if part in kind), None)
    return device_flops(known, dtype) if known is not None else None


def known_flops(field: str, device_type: str, dtype: str) -> float:
    """Like `device_flops`, but raises InvalidInput about `field` if there is no figure."""
    found = device_flops(device_type, dtype)
    if found is None:
        kinds = ", ".join(f"{kind} ({', '.join(numbers)})" for kind, numbers in DEVICE_FLOPS.items())
        raise InvalidInput(field, device_type, f"no peak is known for {dtype}; the known ones are {kinds}")
    return found

"""``gradcore.version.cuda``: the CUDA version of the driver, as ``"12.4"``, or None where there is no GPU to compute on."""

from __future__ import annotations

from typing import Any

from gradcore.devices.availability import cuda_status

hip = None


def __getattr__(name: str) -> Any:
    if name != "cuda":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    status = cuda_status()
    return ".".join(map(str, status.driver)) if status.available and status.driver else None

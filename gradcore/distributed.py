"""``gradcore.distributed``: says that a process has a device to itself, for scripts that ask before they use others."""

from __future__ import annotations

from typing import Any

__all__ = ["destroy_process_group", "init_process_group", "is_available", "is_gloo_available", "is_initialized",
           "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available"]


def is_available() -> bool:
    """Whether processes can work together: no."""
    return False


#: Whether processes have something to talk by, or were started to: no.
is_gloo_available = is_mpi_available = is_nccl_available = is_torchelastic_launched = is_available
is_ucc_available = is_xccl_available = is_available


def is_initialized() -> bool:
    """Whether this process belongs to a group: no."""
    return False


def init_process_group(*args: Any, **kwargs: Any) -> None:
    """Raise NotImplementedError: for scripts that import it and call it only if there are several processes."""
    raise NotImplementedError("init_process_group is not implemented: gradcore trains in one process on one device. "
                              "gradcore.distributed.is_available() is False")


def destroy_process_group(group: Any = None) -> None:
    """Raise NotImplementedError: there is no group."""
    raise NotImplementedError("destroy_process_group: there is no group, as gradcore trains in one process on one device")

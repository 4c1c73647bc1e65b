"""Anomaly detection: finds the op whose gradient became NaN."""

from __future__ import annotations

from gradcore.engine.modes import Mode
from gradcore.engine.state import local


class detect_anomaly(Mode):
    """Inside, ``backward`` raises RuntimeError at the first gradient with a NaN: the op, and the line that ran it.

    Every gradient is read back for it, so it is slow. ``check_nan=False`` turns it off again inside.
    """

    _switch = "anomaly"

    def __init__(self, check_nan: bool = True) -> None:
        super().__init__(check_nan)


class set_detect_anomaly(detect_anomaly):
    """Sets it at once, and restores it if used as a context manager."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        super().__init__(mode and check_nan)
        self._before.append(local.state.anomaly)
        local.state.anomaly = mode and check_nan

    def __enter__(self) -> None:
        """It is set already."""


def is_anomaly_enabled() -> bool:
    """Whether backward looks for NaN in the gradients of each node."""
    return local.state.anomaly

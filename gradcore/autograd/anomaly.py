"""Anomaly detection: finds the op whose gradient became NaN."""

from __future__ import annotations

from gradcore.engine.modes import Mode
from gradcore.engine.state import local


class detect_anomaly(Mode):
    """A context manager in which ``backward`` raises RuntimeError at the first gradient with a NaN, naming op and line.

    It is slow, since every gradient is read back to the host. ``check_nan=False`` turns detection off inside.
    """

    _switch = "anomaly"

    def __init__(self, check_nan: bool = True) -> None:
        super().__init__(check_nan)


class set_detect_anomaly(detect_anomaly):
    """Turns detection on or off at once; used as a context manager, it restores the former state at the end."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        super().__init__(mode and check_nan)
        self._before.append(local.state.anomaly)
        local.state.anomaly = mode and check_nan

    def __enter__(self) -> None:
        """Do nothing: the constructor has set the mode."""


def is_anomaly_enabled() -> bool:
    """Whether backward looks for NaN in the gradients of each node."""
    return local.state.anomaly

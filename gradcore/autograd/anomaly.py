"""Anomaly detection: finds the op whose gradient became NaN."""

from __future__ import annotations

from typing import Any

from gradcore.engine.modes import Mode, Two
from gradcore.engine.state import local


class _Asked(Mode):
    _switch = "asked"


class detect_anomaly(Two):
    """A context manager in which ``backward`` raises RuntimeError at the first gradient with a NaN, naming op and line.

    It is slow, since every gradient is read back to the host. ``check_nan=False`` turns detection off inside.
    """

    _switch = "anomaly"

    def __init__(self, check_nan: bool = True) -> None:
        self._set(True, check_nan)

    def _set(self, mode: bool, check_nan: bool) -> None:
        asked: Any = (bool(mode), bool(check_nan))
        super().__init__(all(asked), _Asked(asked))


class set_detect_anomaly(detect_anomaly):
    """Turns detection on or off at once; used as a context manager, it restores the former state at the end."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._set(mode, check_nan)
        super().__enter__()

    def __enter__(self) -> None:
        """Do nothing: the constructor has set the mode."""


def is_anomaly_enabled() -> bool:
    """Whether anomaly detection is on: backward looks for NaN in the gradients of each node, unless ``check_nan`` is False."""
    return local.state.asked[0]


def is_anomaly_check_nan_enabled() -> bool:
    """The ``check_nan`` of the anomaly detection that is on, or was turned off with :class:`set_detect_anomaly`."""
    return local.state.asked[1]

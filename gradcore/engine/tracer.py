"""The interface of logs that a trace is made from: the engine tells them more than a record holds."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from gradcore.memory.nesting import OfThread


class Tracer(OfThread):
    """A log that is also given the tensors and numbers of each launch, view and detach, and told which uploads are constant."""

    #: Nodes built during the trace have this number or a larger one.
    first: int
    #: Will operands be read again where they are, so that no result may take their place?
    rereads = False

    @abstractmethod
    def launched(self, call: Any, args: tuple[Any, ...], outputs: tuple[Any, ...]) -> None: ...

    @abstractmethod
    def viewed(self, source: Any) -> None: ...

    def detached(self, source: Any) -> None:
        """Another tensor shows all that ``source`` does, without its graph; it may be the only one that ops read."""

    @abstractmethod
    def reshaped(self, tensor: Any) -> None: ...

    @abstractmethod
    def constant(self, storage: Any, numbers: bool) -> None: ...


def tracer_of(log: Any) -> Tracer | None:
    """The log that a device writes, if it traces what this thread runs; a trace of another thread's does not."""
    return log if isinstance(log, Tracer) and not log.is_elsewhere() else None

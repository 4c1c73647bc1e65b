"""Tracks the tensors that explicit graphs read besides their inputs, which may have other memory when the graphs run again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import ref

from gradcore.engine.leaf import leaf_of
from gradcore.errors import TraceError
from gradcore.program.tracing.trace import Trace
from gradcore.program.tracing.trace_log import TraceLog
from gradcore.spec import TensorSpec


class NotingLog(TraceLog):
    """A log that also records the tensors that ops read, weakly: one that has been freed can be given no other memory."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[int, tuple[ref[Any], int, TensorSpec]] = {}

    def _read(self, value: Any) -> None:
        self.detached(value)
        super()._read(value)

    def detached(self, source: Any) -> None:
        self.tensors[id(source)] = ref(source), source.storage.serial, source.spec

    def storages(self) -> list[Any]:
        """The memory of those that exist."""
        return [tensor.storage for known, *_ in self.tensors.values() for tensor in [known()] if tensor is not None]


class Followed:
    """The tensors that a trace captured, as far as they still exist."""

    def __init__(self, trace: Trace, logs: Iterable[Any]) -> None:
        self._trace = trace
        buffers = {storage.serial: b for b, storage in trace.storages.items()}
        self._tensors = [(tensor, buffers[serial], spec) for log in logs for tensor, serial, spec in log.tensors.values()
                         if serial in buffers]

    def _there(self) -> list[tuple[Any, int, TensorSpec]]:
        return [(tensor, b, spec) for known, b, spec in self._tensors for tensor in [known()] if tensor is not None]

    def moved(self) -> list[str]:
        """Descriptions of those that have other memory than in the trace."""
        return [_named(tensor) for tensor, b, spec in self._there()
                if tensor.storage is not self._trace.storages[b] or tensor.spec is not spec]

    def name(self, buffer: int) -> str:
        """A description of the tensor that a captured buffer was traced as."""
        return next((_named(tensor) for tensor, b, _ in self._there() if b == buffer), "a tensor")

    def follow(self, name: str) -> bool:
        """Let the trace use the memory that the tensors have now, and return whether any of it is new.

        Raises TraceError if it cannot replace the memory of before.
        """
        there, storages = self._there(), self._trace.storages
        found = {b: tensor for tensor, b, _ in there if tensor.storage is not storages[b]}
        for tensor, b, spec in there:
            if b not in found:
                if tensor.spec is spec:
                    continue
                raise TraceError(f"{name} was traced with {_named(tensor, spec)}, which now shows other elements of the same "
                                 f"memory, {tensor.spec}: trace it again")
            if tensor.storage is not found[b].storage:
                raise TraceError(f"the memory of {_named(found[b])} was replaced, but {name} also reads another tensor that "
                                 "shared the old memory: trace it again")
            if tensor.spec is not spec or tensor.storage.device is not storages[b].device or not self._fits(b, tensor.storage):
                raise TraceError(f"{name} was traced with {_named(tensor, spec)} on {storages[b].device}, which is now "
                                 f"{tensor.spec} on {tensor.storage.device}: trace it again")
        storages |= {b: tensor.storage for b, tensor in found.items()}
        return bool(found)

    def _fits(self, buffer: int, storage: Any) -> bool:
        return all(x.spec.fits(storage.extent) for i in self._trace.program.instructions
                   for x in i.tensors() if x.buffer == buffer)


def _named(tensor: Any, spec: TensorSpec | None = None) -> str:
    leaf = leaf_of(tensor)
    return f"{(leaf and leaf.path) or 'a tensor'}, {spec or tensor.spec}"

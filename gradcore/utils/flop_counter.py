"""Counts floating-point operations, from the records of launches: so also on meta, which computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from types import TracebackType
from typing import Any

from gradcore.devices.device import Device, arrivals, devices
from gradcore.events import LAUNCH, Network, Raw, Tag
from gradcore.ops.op import get_op
from gradcore.reading import network_names

__all__ = ["FlopCounterMode"]


class FlopCounterMode:
    """A context manager that counts the floating-point operations of what runs in it, forward and backward, on all devices
    and in all threads.

    As in PyTorch, products count: of matrices, in convolutions, attention and recurrent layers, with two operations for each
    multiplication and addition. What masks or padding make superfluous counts, too. The end prints :meth:`get_table`, unless
    ``display`` is false, with modules of up to ``depth`` names in their paths. Records are kept until the end, so the region
    should be a few steps. It may be within ``gradcore.step()``, or around it.
    """

    def __init__(self, mods: Any = None, depth: int = 2, display: bool = True) -> None:
        self.depth = depth
        self.display = display
        self._logs: list[tuple[Device, list[Raw]]] = []
        self._counts: dict[str, dict[str, int]] = {}

    def __enter__(self) -> FlopCounterMode:
        if self._begin in arrivals:
            raise RuntimeError("this FlopCounterMode is counting already: it cannot be entered again before its end")
        self._counts, self._logs = {}, []
        try:
            arrivals.append(self._begin)
            for device in devices():
                self._begin(device)
        except BaseException:
            self._end()
            raise
        return self

    def _begin(self, device: Device) -> None:
        log: list[Raw] = []
        # Known before it begins: an interrupt may come at its end.
        self._logs.append((device, log))
        device.ledger.begin_log(log)

    def _end(self) -> None:
        """End whatever has begun and not ended."""
        if self._begin in arrivals:
            arrivals.remove(self._begin)
        for device, log in self._logs:
            device.ledger.end_log(log)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._end()
        except BaseException:
            # After an interrupt, once more, so that no log stays open.
            self._end()
            raise
        self._counts = _count([raw for _, log in self._logs for raw in log])
        self._logs = []
        if self.display:
            print(self.get_table())

    def get_flop_counts(self) -> dict[str, dict[str, int]]:
        """Operations by op, for each module by its path from the network's class on, and for ``"Global"``, which is all."""
        if self._logs:
            return _count([raw for device, log in self._logs for raw in device.ledger.so_far(log)])
        return self._counts

    def get_total_flops(self) -> int:
        """All operations."""
        return sum(self.get_flop_counts().get("Global", {}).values())

    def get_table(self, depth: int | None = None) -> str:
        """A line for each module whose path has up to ``depth`` names, and for each op in it: operations and their share."""
        counts, most = self.get_flop_counts(), self.depth if depth is None else depth
        total = sum(counts.get("Global", {}).values())
        # All operations are a row of their own where none of these modules has all.
        shown = [path for path in counts if path == "Global" or path.count(".") < most]
        top = any(sum(counts[path].values()) == total for path in shown[1:])
        rows = []
        for path in shown[top:]:
            level, by_op = path.count(".") + (not top and path != "Global"), counts[path]
            rows += [(" " * level + path, sum(by_op.values())), *((" " * level + f" - {op}", n) for op, n in by_op.items())]
        rows = rows or [("Global", 0)]
        width, digits = max(len(name) for name, _ in rows), max(len("FLOPs"), len(f"{total:,}"))
        return "\n".join([f"{'module':{width}}  {'FLOPs':>{digits}}  share", *(
            f"{name:{width}}  {n:>{digits},}  {n / total if total else 0:6.1%}" for name, n in rows)])


def _count(records: list[Raw]) -> dict[str, dict[str, int]]:
    # By id, since both take long to hash. The records keep them alive.
    launched: dict[tuple[int, int], list[Any]] = {}
    for raw in records:
        if raw[0] == LAUNCH:
            launched.setdefault((id(raw[1]), id(raw[2])), [raw[1], raw[2], 0])[2] += 1
    names = network_names(tag.network for _, tag, _ in launched.values())
    counts: dict[str, dict[str, int]] = {}
    for done, tag, times in launched.values():
        flops = times * get_op(done.op).count_flops(done.inputs, done.outputs, dict(done.attrs))
        # A network may be called Global, too.
        for path in dict.fromkeys(("Global", *_paths(tag, names))) if flops else ():
            by_op = counts.setdefault(path, {})
            by_op[done.op] = by_op.get(done.op, 0) + flops
    return counts


def _paths(tag: Tag, names: Mapping[Network, str]) -> list[str]:
    """The module that an op ran in, after those that it is in, the network first."""
    if tag.network is None:
        return []
    network = names.get(tag.network, tag.network.kind)
    return list(accumulate(tag.layer.split(".") if tag.layer else (), "{}.{}".format, initial=network))

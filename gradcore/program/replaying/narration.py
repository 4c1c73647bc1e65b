"""Writes the log records of a replay, as running its instructions eagerly would have written them.

They name the planned ranges of the arena, from the instruction that makes a buffer to the last that reads it. Where a result
takes an operand's place, the operand is freed just before the result is allocated: a range belongs to one buffer at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from gradcore.events import ALLOC, CONSUMED, DIED, DROP, FREE, KEEP, LAUNCH, MARK
from gradcore.memory.arena import Range, close_ranges
from gradcore.program.program import Operand
from gradcore.program.tracing.trace import Trace
from gradcore.spec import round_up

if TYPE_CHECKING:
    from gradcore.program.replaying.binding import Binding

#: By buffer that the first of two parts makes and the second reads: the nodes that keep it, with the name it is kept under.
Waiting = dict[int, list[tuple[int, str]]]


def waiting_in(trace: Trace) -> Waiting:
    """The buffers that wait for the second part of a program; none if it has only one part."""
    split, launches = trace.program.split, 0
    if split is None:
        return {}
    found: Waiting = {b.index: [] for b in trace.program.made() if b.first < split <= b.last}
    for kind, *rest in trace.script:
        launches += kind == LAUNCH
        if launches > split:
            break
        if kind == KEEP and rest[0] in found:
            found[rest[0]].append((rest[1], rest[2]))
        elif kind == DROP and rest[0] in found:
            found[rest[0]] = [h for h in found[rest[0]] if h[0] != rest[1]]
    return {b: holders or [(0, "the compiled gradient")] for b, holders in found.items()}


class Narration:
    """The log that is written to, with the buffers that are live and kept at the present record.

    ``serials`` has the serials of buffers that the program did not make; ``carried`` the ranges of those that the part before
    left open for this one, which closes them.
    """

    def __init__(self, bound: Binding, serials: dict[int, int], carried: dict[int, Range]) -> None:
        ledger = bound.device.ledger
        assert ledger.log is not None
        self._ledger = ledger
        self._log = ledger.log
        self._pool = ledger.pool
        self._trace, self._program, self._plan, self._arena = bound.trace, bound.program, bound.plan, bound.arena.block
        self._carried, self._waiting = carried, bound.waiting
        self._overwritten = bound.plan.overwritten
        #: By buffer: the serial of its bytes.
        self._serials = serials | {b: block.serial for b, block in carried.items()}
        #: Made buffers that are live, in order of allocation.
        self._live = dict.fromkeys(carried)
        #: By buffer: the nodes that keep it, with the names they use. For ``carried`` these are in the log already.
        self._kept = {b: list(self._waiting[b]) for b in carried}
        for block in carried.values():
            block.keeps = 0

    def write(self, start: int, stop: int, drop: Callable[[int], None]) -> list[int]:
        """Write the records of the instructions from ``start`` to before ``stop``, which are a part of the program.

        Before each, ``drop`` is called with its index, to free the gradients of before the run that it drops there.
        Buffers that are live when the part begins, and not carried, are allocated at its start. At its end all are freed,
        except those that the first of two parts leaves waiting, whose serials are returned.
        """
        lasting: Waiting = {} if start else self._waiting
        #: By instruction: the buffers that it makes, and those that it is the last to read and no result of it is placed in.
        born, dying = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        taken = {*chain(*self._overwritten.values())}
        for b in self._program.made():
            born[b.first].append(b.index)
            if b.index not in taken:
                dying[b.last].append(b.index)
            if b.first < start <= b.last and b.index not in self._carried:
                self._begin(b.index)
        k = -1
        for kind, *rest in self._trace.script:
            if kind in (LAUNCH, MARK) and start <= k < stop:
                # Ahead of a mark, too, or it would count them as live when its phase ends.
                for buffer in dying.pop(k, ()):
                    self._end(buffer)
            if kind == LAUNCH:
                k += 1
                if k == stop:
                    break
                if start <= k:
                    drop(k)
                    self._launch(k, born[k])
            elif kind == MARK:
                # The traced run's backward becomes the second of two parts, which runs inside its caller's, with its marks.
                caller = rest[1] == "backward" and (start or (rest[0] == "begin" and k + 1 == self._program.split))
                if not caller and (k >= start or not start):
                    self._log.append((MARK, *rest, perf_counter_ns()))
            elif self._has(rest[0]) and not (rest[0] in self._carried and k < start):
                self._keep(kind, *rest)
        for buffer, holders in lasting.items():
            self._log.extend((KEEP, self._serials[buffer], node, what) for node, what in holders if not node)
            self._kept.pop(buffer, None)
        for buffer in [b for b in self._live if b not in lasting]:
            self._end(buffer)
        # In an eager run the graph would have dropped these when it was freed.
        for buffer, holders in self._kept.items():
            self._log.extend((DROP, self._serials[buffer], node, DIED) for node, _ in holders)
        return [self._serials[buffer] for buffer in lasting]

    def _begin(self, buffer: int) -> None:
        b = self._program.buffers[buffer]
        self._pool.serial += 1
        serial, arena = self._pool.serial, self._arena
        record = (ALLOC, serial, arena.segment.index, arena.offset + self._plan.offsets[buffer], b.nbytes, round_up(b.nbytes),
                  arena.stream.index, b.tag, self._program.node_of(b))
        # No calls from here on, as an interrupt after one would leave half of it done.
        self._log += (record,)
        self._live[buffer] = None
        self._serials[buffer] = serial

    def _end(self, buffer: int) -> None:
        serial = self._serials[buffer]
        for node, _ in self._kept.pop(buffer, ()):
            self._log.append((DROP, serial, node, CONSUMED))
        if buffer in self._carried:
            close_ranges(self._ledger, [self._carried[buffer]])
        else:
            self._log += ((FREE, serial),)
        del self._live[buffer]

    def give_up(self) -> None:
        """After an interrupt: free in the log what the books do not have."""
        counted = {block.serial for block in self._ledger.ranges}
        for buffer in self._live:
            serial = self._serials[buffer]
            if buffer not in self._carried and serial not in counted:
                dropped = [(DROP, serial, node, DIED) for node, _ in self._kept.get(buffer, ())]
                self._log += (*dropped, (FREE, serial))

    def _launch(self, k: int, born: Sequence[int]) -> None:
        """Write the launch of instruction ``k``, and the allocations of the buffers that it makes."""
        for buffer in born:
            for place in self._overwritten.get(buffer, ()):
                self._end(place)
            self._begin(buffer)
        instruction = self._program.instructions[k]
        # Node 0, since a replay builds no nodes.
        self._log.append((LAUNCH, self._trace.invocations[k], instruction.tag, 0,
                          tuple(self._serials[x.buffer] if isinstance(x, Operand) else 0 for x in instruction.operands),
                          tuple(self._serials[x.buffer] for x in instruction.outputs), perf_counter_ns()))

    def _has(self, buffer: int) -> bool:
        """May a record name the buffer? In a second part, captured ones are kept by the node of the call instead."""
        return buffer in self._live or (self._program.split is None and buffer in self._serials
                                        and self._program.buffers[buffer].kind != "made")

    def _keep(self, kind: int, buffer: int, node: int, what: Any) -> None:
        """Write that a node keeps a buffer under the name ``what``, or drops it for the reason ``what``."""
        holders = self._kept.setdefault(buffer, [])
        if kind == KEEP:
            holders.append((node, what))
        else:
            found = next((h for h in holders if h[0] == node), None)
            if found is None:
                return
            holders.remove(found)
        self._log.append((kind, self._serials[buffer], node, what))

"""The records of a replay: those that running its instructions eagerly would have left in the log.

They name the planned ranges of the arena, from the instruction that makes a buffer to the last that reads it. A buffer whose
place an instruction's result takes is free just before that is allocated: a range belongs to one buffer at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from gradcore.devices.device import Device
from gradcore.events import ALLOC, CONSUMED, DIED, DROP, FREE, KEEP, LAUNCH, MARK, TAGS
from gradcore.memory.resource import Block
from gradcore.program.plan import Plan
from gradcore.program.program import Operand, Program
from gradcore.program.recorder import Trace
from gradcore.spec import round_up

#: By buffer that is made in the first part of a program in two and read in the second: which nodes keep it, and as what.
Waiting = dict[int, list[tuple[int, str]]]


def waiting_in(trace: Trace) -> Waiting:
    """What waits for the second part of a program in two; nothing in another."""
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


def narrate(device: Device, trace: Trace, plan: Plan, arena: Block, serials: dict[int, int], part: slice,
            carried: dict[int, int], waiting: Waiting) -> list[int]:
    """Write the records of the instructions in ``part``. ``serials`` names the bytes of buffers that the program did not make.

    ``carried`` names what the part before left for this; what else is live when the part begins is allocated at its start. All
    is free at its end, but for what the first of two parts leaves ``waiting``, of which the serials are returned.
    """
    start, stop, _ = part.indices(len(trace.program.instructions))
    return _Narration(device, trace, plan, arena, serials, carried, waiting).write(start, stop)


class _Narration:
    """The log that is written to, with what is live and what is kept by then."""

    def __init__(self, device: Device, trace: Trace, plan: Plan, arena: Block, serials: dict[int, int],
                 carried: dict[int, int], waiting: Waiting) -> None:
        assert device.ledger.log is not None
        self._log = device.ledger.log
        self._pool = device.ledger.pool
        self._trace, self._program, self._plan, self._arena = trace, trace.program, plan, arena
        self._carried, self._waiting = carried, waiting
        #: By buffer: the serial of its bytes.
        self._serials = serials | carried
        #: Made buffers that are live, in order of allocation.
        self._live = dict.fromkeys(carried)
        #: By buffer: the nodes that keep it, with the names that they keep it under. Of what was carried here the log has them.
        self._kept = {b: list(waiting[b]) for b in carried}

    def write(self, start: int, stop: int) -> list[int]:
        lasting: Waiting = {} if start else self._waiting
        born, dying = _by_moment(self._program, self._plan.shared)
        for b in self._program.made():
            if b.first < start <= b.last and b.index not in self._carried:
                self._begin(b.index)
        k = -1
        for kind, *rest in self._trace.script:
            if kind == LAUNCH:
                if start <= k < stop:
                    for buffer in dying.get(k, ()):
                        self._end(buffer)
                k += 1
                if lasting and k == stop:
                    break
                if start <= k < stop:
                    self._launch(k, born.get(k, ()))
            elif kind == MARK:
                # The second part runs in the backward of its caller.
                if start <= k + (rest[0] == "begin") < stop + (rest[0] == "end") and not (start and rest[1] == "backward"):
                    self._log.append((MARK, *rest, perf_counter_ns()))
            elif self._has(rest[0]) and not (rest[0] in self._carried and k < start):
                self._keep(kind, *rest)
        for buffer, holders in lasting.items():
            self._log.extend((KEEP, self._serials[buffer], node, what) for node, what in holders if not node)
            self._kept.pop(buffer, None)
        for buffer in [b for b in self._live if b not in lasting]:
            self._end(buffer)
        # The graph of the traced run would have let go of these when it died.
        for buffer, holders in self._kept.items():
            self._log.extend((DROP, self._serials[buffer], node, DIED) for node, _ in holders)
        return [self._serials[buffer] for buffer in lasting]

    def _begin(self, buffer: int) -> None:
        b = self._program.buffers[buffer]
        self._pool.serial += 1
        self._live[buffer] = None
        self._serials[buffer] = self._pool.serial
        node = self._program.instructions[b.first].node if 0 <= b.first < len(self._program.instructions) else 0
        arena = self._arena
        self._log.append((ALLOC, self._pool.serial, arena.segment.index, arena.offset + self._plan.offsets[buffer], b.nbytes,
                          round_up(b.nbytes), arena.stream.index, TAGS.index(b.tag), node))

    def _end(self, buffer: int) -> None:
        del self._live[buffer]
        serial = self._serials[buffer]
        for node, _ in self._kept.pop(buffer, ()):
            self._log.append((DROP, serial, node, CONSUMED))
        self._log.append((FREE, serial))

    def _launch(self, k: int, born: Sequence[int]) -> None:
        """Instruction ``k``, with the buffers that it makes."""
        for buffer in born:
            if buffer in self._plan.shared:
                self._end(self._plan.shared[buffer])
            self._begin(buffer)
        instruction = self._program.instructions[k]
        # Node 0, since no node was built.
        self._log.append((LAUNCH, self._trace.invocations[k], TAGS.index(instruction.tag), 0,
                          tuple(self._serials[x.buffer] if isinstance(x, Operand) else 0 for x in instruction.operands),
                          tuple(self._serials[x.buffer] for x in instruction.outputs), perf_counter_ns()))

    def _has(self, buffer: int) -> bool:
        """May a record name the buffer here? Other buffers that the second part of two reads, the node between them keeps."""
        return buffer in self._live or (self._program.split is None and buffer in self._serials
                                        and self._program.buffers[buffer].kind != "made")

    def _keep(self, kind: int, buffer: int, node: int, what: Any) -> None:
        """A record that a node keeps a buffer, under the name ``what``, or drops it, for the reason ``what``."""
        holders = self._kept.setdefault(buffer, [])
        if kind == KEEP:
            holders.append((node, what))
        else:
            found = next((h for h in holders if h[0] == node), None)
            if found is None:
                return
            holders.remove(found)
        self._log.append((kind, self._serials[buffer], node, what))


def _by_moment(program: Program, shared: dict[int, int]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """The buffers that each instruction makes, and those that nobody reads after it and no result of it lies in."""
    taken = set(shared.values())
    born: dict[int, list[int]] = {}
    dying: dict[int, list[int]] = {}
    for b in program.made():
        born.setdefault(b.first, []).append(b.index)
        if b.index not in taken:
            dying.setdefault(b.last, []).append(b.index)
    return born, dying


def most_live(program: Program, shared: dict[int, int], start: int, stop: int) -> tuple[int, int]:
    """The most requested and allocated bytes of made buffers that are live at an instruction from ``start`` to ``stop``.

    Of two that share a place, the first is live no more at the instruction that makes the second.
    """
    most_requested = most_allocated = 0
    born, dying = _by_moment(program, shared)
    # Of a part of a longer program, some lived before it.
    older = [b for b in program.made() if b.first < 0 <= b.last]
    requested, allocated = sum(b.nbytes for b in older), sum(round_up(b.nbytes) for b in older)
    for k in range(stop):
        for buffer in born.get(k, ()):
            if buffer not in shared:
                requested += program.buffers[buffer].nbytes
                allocated += round_up(program.buffers[buffer].nbytes)
        if k >= start:
            most_requested, most_allocated = max(most_requested, requested), max(most_allocated, allocated)
        for buffer in dying.get(k, ()):
            requested -= program.buffers[buffer].nbytes
            allocated -= round_up(program.buffers[buffer].nbytes)
    return most_requested, most_allocated

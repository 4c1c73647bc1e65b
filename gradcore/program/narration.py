"""What a replay writes into a log that is being recorded: the records that a run of its instructions would have left.

They name the planned ranges of the arena, from the instruction that makes a buffer to the last that reads it. A buffer whose
place an instruction's result takes is free just before that is allocated: a range belongs to one buffer at a time.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from gradcore.devices.device import Device
from gradcore.events import ALLOC, DROP, FREE, KEEP, LAUNCH, MARK, TAGS
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
    log = device.ledger.log
    assert log is not None
    program = trace.program
    count = len(program.instructions)
    start, stop, _ = part.indices(count)
    pool = device.ledger.pool
    serials = dict(serials)
    live = dict(carried)
    serials |= live
    # Of what was carried here the log has said who keeps it.
    kept: dict[int, list[tuple[int, str]]] = {b: list(waiting[b]) for b in carried}
    lasting: Waiting = {} if start else waiting
    born, dying = _by_moment(program, plan.shared)

    def begin(buffer: int) -> None:
        b = program.buffers[buffer]
        pool.serial += 1
        live[buffer] = serials[buffer] = pool.serial
        node = program.instructions[b.first].node if 0 <= b.first < count else 0
        log.append((ALLOC, pool.serial, arena.segment.index, arena.offset + plan.offsets[buffer], b.nbytes, round_up(b.nbytes),
                    arena.stream.index, TAGS.index(b.tag), node))

    def end(buffer: int) -> None:
        serial = live.pop(buffer)
        for node, _ in kept.pop(buffer, ()):
            log.append((DROP, serial, node, 0))
        log.append((FREE, serial))

    for b in program.made():
        if b.first < start <= b.last and b.index not in carried:
            begin(b.index)
    k = -1
    for kind, *rest in trace.script:
        if kind == LAUNCH:
            if start <= k < stop:
                for buffer in dying.get(k, ()):
                    end(buffer)
            k += 1
            if lasting and k == stop:
                break
            if start <= k < stop:
                for buffer in born.get(k, ()):
                    if buffer in plan.shared:
                        end(plan.shared[buffer])
                    begin(buffer)
                instruction = program.instructions[k]
                # It ran for no node: none was built.
                log.append((LAUNCH, trace.invocations[k], TAGS.index(instruction.tag), 0,
                            tuple(serials[x.buffer] if isinstance(x, Operand) else 0 for x in instruction.operands),
                            tuple(serials[x.buffer] for x in instruction.outputs), perf_counter_ns()))
        elif kind == MARK:
            # The second part runs in the backward of its caller.
            if start <= k + (rest[0] == "begin") < stop + (rest[0] == "end") and not (start and rest[1] == "backward"):
                log.append((MARK, *rest, perf_counter_ns()))
        elif rest[0] in carried and k < start:
            continue
        elif rest[0] in live or (program.split is None and rest[0] in serials and program.buffers[rest[0]].kind != "made"):
            # What the second part of two reads of others, the node between them keeps.
            _keep(log, kind, serials[rest[0]], rest, kept)
    for buffer, holders in lasting.items():
        log.extend((KEEP, live[buffer], node, what) for node, what in holders if not node)
        kept.pop(buffer, None)
    for buffer in live.keys() - lasting.keys():
        end(buffer)
    # The graph of the traced run would have let go of these when it died.
    log.extend((DROP, serials[buffer], node, 1) for buffer, holders in kept.items() for node, _ in holders)
    return [live[buffer] for buffer in lasting]


def _keep(log: list[Any], kind: int, serial: int, rest: list[Any], kept: dict[int, list[tuple[int, str]]]) -> None:
    buffer, node, what = rest
    holders = kept.setdefault(buffer, [])
    if kind == KEEP:
        holders.append((node, what))
        log.append((KEEP, serial, node, what))
    else:
        found = next((h for h in holders if h[0] == node), None)
        if found is not None:
            holders.remove(found)
            log.append((DROP, serial, node, what))


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

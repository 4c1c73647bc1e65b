"""Several recordings as one program, and its parts: what is left of a chain of graphs when it is planned into one arena."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradcore.devices.device import Device
from gradcore.engine.node import Leaf
from gradcore.events import LAUNCH, Raw
from gradcore.program.recorder import Builder, Recorder, Trace


class _Joined:
    """Several recordings as one, for the builder."""

    def __init__(self, device: Device, recorders: list[Recorder]) -> None:
        self.device = device
        self.recorders = recorders
        self.log = _Log(recorders)

    def records(self) -> list[Raw]:
        return [r for recorder in self.recorders for r in recorder.records()]

    def updates(self) -> list[Any]:
        return []

    def slots_before(self) -> dict[Leaf, int]:
        # Gradients are results here: no leaf is given any.
        return {}


class _Log(list[Raw]):
    def __init__(self, recorders: list[Recorder]) -> None:
        super().__init__(r for recorder in recorders for r in recorder.log)
        self.launches = [launch for recorder in recorders for launch in recorder.log.launches]
        self.disturbed = any(recorder.log.disturbed for recorder in recorders)
        self.beyond = ""  # a graph goes on with those before it
        self.foreign = {key: r for recorder in recorders for key, r in recorder.log.foreign.items()}
        self.bytes_of = {leaf: serial for recorder in recorders for leaf, serial in recorder.log.bytes_of.items()}
        self.constants = {serial: of for recorder in recorders for serial, of in recorder.log.constants.items()}


class _ChainBuilder(Builder):
    def _escaped(self, survivors: set[int]) -> list[str]:
        # The tensors of the traced runs are there for the next graph of the chain.
        return []


def joined_trace(device: Device, recorders: list[Recorder], inputs: list[list[Any]], examples: list[list[Any]]) -> Trace:
    """The trace of runs that were recorded one after the other, with the tensors that each was given and returned."""
    joined: Any = _Joined(device, recorders)
    builder = _ChainBuilder(joined, [t for own in inputs for t in own], [t for own in examples for t in own], None)
    return builder.trace(tuple(len(r.log.launches) for r in recorders), list(map(len, examples)))


def part_of(trace: Trace, span: slice, given: int, made: slice) -> Trace:
    """Some instructions of a trace as a trace of their own; lifetimes count from the first of them.

    Its inputs are the first ``given`` of the whole.
    """
    program = trace.program
    buffers = tuple(replace(b, first=b.first - span.start, last=b.last - span.start) if b.kind == "made" else b
                    for b in program.buffers)
    part = replace(program, buffers=buffers, instructions=program.instructions[span], inputs=program.inputs[:given],
                   outputs=program.outputs[made])
    launches = [k for k, entry in enumerate(trace.script) if entry[0] == LAUNCH]
    first = launches[span.start] if span.start else 0
    last = launches[span.stop] if span.stop < len(launches) else len(trace.script)
    return replace(trace, program=part, kernels=trace.kernels[span], invocations=trace.invocations[span],
                   script=trace.script[first:last])

"""Joins the recordings of a chain of graphs into one program, to be planned into one arena, and cuts it into its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradcore.devices.device import Device
from gradcore.engine.node import Leaf
from gradcore.events import Raw
from gradcore.program.recorder import Builder, Recorder, Trace


class _Joined:
    """Several recordings, with the interface of one :class:`Recorder`, for the builder."""

    def __init__(self, device: Device, recorders: list[Recorder]) -> None:
        self.device = device
        self.recorders = recorders
        self.log = _Log(recorders)
        self.updates: list[Any] = []

    def records(self) -> list[Raw]:
        return [r for recorder in self.recorders for r in recorder.records()]

    def slots_before(self) -> dict[Leaf, int]:
        # Gradients are results here: no leaf gets one.
        return {}


class _Log(list[Raw]):
    def __init__(self, recorders: list[Recorder]) -> None:
        super().__init__(r for recorder in recorders for r in recorder.log)
        self.launches = [launch for recorder in recorders for launch in recorder.log.launches]
        self.disturbed = any(recorder.log.disturbed for recorder in recorders)
        self.beyond = ""  # A graph of a chain does continue the graphs before it.
        self.reshapes = next((recorder.log.reshapes for recorder in recorders if recorder.log.reshapes), "")
        self.foreign = {key: r for recorder in recorders for key, r in recorder.log.foreign.items()}
        self.leaves = {leaf: serial for recorder in recorders for leaf, serial in recorder.log.leaves.items()}
        self.constants = {serial: of for recorder in recorders for serial, of in recorder.log.constants.items()}


class _ChainBuilder(Builder):
    def _escaped(self, survivors: set[int]) -> list[str]:
        # The tensors of the traced runs stay alive for the next graph of the chain.
        return []


#: The records of one graph of a chain, as in :attr:`Trace.script`.
Script = list[tuple[Any, ...]]


def joined_trace(device: Device, recorders: list[Recorder], inputs: list[list[Any]],
                 examples: list[list[Any]]) -> tuple[Trace, list[Script]]:
    """The trace of consecutive recordings, with the input tensors and the returned tensors of each; and the script of each."""
    joined: Any = _Joined(device, recorders)
    builder = _ChainBuilder(joined, [t for own in inputs for t in own], [t for own in examples for t in own], None)
    whole = builder.trace(tuple(len(r.log.launches) for r in recorders), list(map(len, examples)))
    return whole, [builder.script(r.records()) for r in recorders]


def part_of(trace: Trace, span: slice, given: int, made: slice, script: Script) -> Trace:
    """The instructions in ``span`` as a trace of their own, with lifetimes relative to the first of them.

    Its inputs are the first ``given`` inputs of the whole, its outputs those in ``made``.
    """
    program = trace.program
    buffers = tuple(replace(b, first=b.first - span.start, last=b.last - span.start) if b.kind == "made" else b
                    for b in program.buffers)
    part = replace(program, buffers=buffers, instructions=program.instructions[span], inputs=program.inputs[:given],
                   outputs=program.outputs[made])
    return replace(trace, program=part, kernels=trace.kernels[span], invocations=trace.invocations[span], script=script)

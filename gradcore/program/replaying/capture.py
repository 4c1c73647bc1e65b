"""Replays as CUDA graphs: a program's calls as one launch, over memory with fixed addresses.

The first run over an arena calls the kernels one by one, which compiles and loads them, and then captures the same calls;
later runs launch the captured graph. What differs from run to run is put where the captured launches read it (``fixed.py``).
A gradient in a slot that a run adds to is not copied: its address is captured, and the calls are captured again when it has
moved.

Where something cannot be captured, the kernels are called one by one as on other devices, and ``explain()`` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradcore.devices.calls import KernelCall
from gradcore.devices.device import get_device
from gradcore.devices.precision import rounded
from gradcore.errors import CaptureError, DeviceFault
from gradcore.program.planning.plan import Plan
from gradcore.program.program import Instruction
from gradcore.program.replaying.binding import Binding
from gradcore.program.replaying.bound_calls import run_calls
from gradcore.program.replaying.fixed import Fixed
from gradcore.program.replaying.replay import Replay
from gradcore.program.tracing.trace import Trace

#: After so many captures in succession that were never launched, a program is not captured any more.
_MOST_UNUSED = 3


@dataclass
class Captured:
    """The graph of one part of a program, with what it was captured with: the addresses of the gradients in slots, and the
    precision of products."""

    graph: Any
    given: list[Any]
    launched: bool = False


class CapturedReplay(Replay):
    """A replay that launches each part of its program as one graph, or calls kernels one by one if the device has no graphs."""

    def __init__(self, trace: Trace, plan: Plan) -> None:
        super().__init__(trace, plan)
        #: Why the kernels are called one by one; "" if they are captured.
        self.reason = "" if self.device.graphs is not None else "the device has no graphs"
        self._captured: dict[int, Captured] = {}
        self._unused = 0
        if self.device.graphs is not None:
            # A launch of gradcore's own copy kernel would cost the host several times as much.
            self._clone = self.device.graphs.copy_array
        #: Where captured launches find what differs from run to run; None while kernels are called one by one.
        self._fixed: Fixed | None = None
        #: The same, set aside for a run on arguments that cannot be copied; and why kernels are called one by one for now.
        self._aside: Fixed | None = None
        self._apart = ""
        #: The ledger of the memory that it lacks, and the bytes.
        self._lacking: tuple[Any, int] | None = None

    # -- binding -------------------------------------------------------------------------------------------------------

    def _bind(self) -> Binding:
        self._forget()
        bound = super()._bind()
        self._fixed = self._aside = None
        if not self.reason:
            self._fix(bound)
        return bound

    def _fix(self, bound: Binding) -> None:
        """Make the calls read fixed addresses, if there is room for what lies there."""
        try:
            fixed = Fixed(bound)
        except BaseException:
            # Some calls have no place for the inputs of a run any more: the next run binds again.
            self._bound = None
            raise
        self._apart, self._lacking = fixed.reason, fixed.lacking
        self._fixed = None if fixed.reason else fixed

    def _forget(self) -> None:
        """Drop the graphs, and count those that were never launched."""
        for captured in self._captured.values():
            self._unused = 0 if captured.launched else self._unused + 1
        self._captured.clear()

    def _give_up(self, reason: str) -> None:
        """From here on, call kernels one by one, on the inputs of each run."""
        self.reason = reason
        self._captured.clear()
        bound = self._bound
        assert bound is not None and self._fixed is not None
        self._fixed.undo()
        self._fixed = None
        if self._inputs:
            # The second part is still to run, and reads these inputs.
            bound.calls.fill_in(self.program.inputs, self._inputs)

    # -- running -------------------------------------------------------------------------------------------------------

    def _bring(self, bound: Binding, inputs: Sequence[Any]) -> None:
        if self._lacking and self._lacking[0].pool.largest_free >= self._lacking[1]:
            self._fix(bound)
        if self._aside is not None:
            self._aside.redo()
            self._fixed, self._aside, self._apart = self._aside, None, ""
        if self._fixed is not None and (reason := self._fixed.refusal(inputs)):
            self._aside, self._fixed, self._apart = self._fixed, None, reason
            self._aside.undo()
        super()._bring(bound, inputs)
        if self._fixed is not None:
            self._fixed.bring(inputs)

    def backward(self, cotangents: Sequence[Any]) -> list[Any]:
        if self._fixed is not None:
            self._fixed.find(1, cotangents)
        return super().backward(cotangents)

    def _note_stream(self, bound: Binding, given: Sequence[Any]) -> None:
        super()._note_stream(bound, given)
        if self._fixed is not None:
            self._fixed.note_stream()

    def _make_results(self, bound: Binding) -> tuple[int, int]:
        fixed = self._fixed
        if fixed is None or fixed.boxes[0] is None or bound.freed:
            return 0, 0
        allocate = self.device.allocate
        self._made = {b: allocate(nbytes, tag) for b, _, nbytes, tag in fixed.out}
        return fixed.out_bytes

    def _run_calls(self, calls: list[KernelCall], part: int) -> None:
        fixed = self._fixed
        if fixed is None:
            run_calls(calls)
            return
        box = fixed.boxes[part]
        if box is not None:
            box.post(fixed.sources, [made.block.address for made in self._made.values()])
        if not calls:
            # A second part may read what the first was given.
            self._run_alone(calls, fixed, part)
            return
        given = [*[g.storage.block.address for g in self.in_slots(part).values()], rounded()]
        captured = self._captured.get(part)
        if captured is not None and captured.given == given:
            captured.launched = True
            captured.graph.launch(self.device.current)
            if box is not None:
                box.sent()
            fixed.copy_back(part)
            return
        self._run_alone(calls, fixed, part)
        fixed.copy_back(part)
        if captured is not None:
            self._forget()
        if self._unused < _MOST_UNUSED:
            self._capture(calls, fixed, part, given)
        else:
            self._give_up(f"the memory that it uses moved {_MOST_UNUSED} times before it was launched: a gradient that is "
                          "referenced after a run keeps its memory, and a new tensor as a gradient has other memory")

    def _run_alone(self, calls: list[KernelCall], fixed: Fixed, part: int) -> None:
        """Make the posted copies, and run the calls between, one by one."""
        if fixed.boxes[part] is not None:
            fixed.boxes[part].bring_alone()
        run_calls(calls)
        for buffer, home, nbytes, _ in fixed.out:
            if buffer in self._made:
                self.device.graphs.copy(self._made[buffer].block.address, home, nbytes)

    def _capture(self, calls: list[KernelCall], fixed: Fixed, part: int, given: list[Any]) -> None:
        if fixed.table is not None:
            fixed.table.frozen = True
        try:
            bound = self._bound
            assert bound is not None
            callers, box = bound.calls.callers[part], fixed.boxes[part]

            def run() -> None:
                if box is not None:
                    box.bring()
                _run_named(calls, callers)
                if box is not None:
                    box.deliver()

            self._captured[part] = Captured(self.device.graphs.capture(run), given)
        except DeviceFault:
            raise
        except Exception as error:
            # Libraries raise errors of their own types when they cannot be captured.
            self._give_up(str(error))
        finally:
            if fixed.table is not None:
                fixed.table.frozen = False

    def explain(self) -> list[str]:
        if self.reason:
            return [f"its kernels are launched one by one: {self.reason}"]
        calls = [] if self._bound is None else self._bound.calls.parts
        found = [f"{len(calls[part])} kernel calls are captured in one graph" + (", of the second part" if part else "")
                 for part in sorted(self._captured)]
        return [*found, *([f"in its last run its kernels were launched one by one: {self._apart}"] if self._apart else [])]


def replay_of(trace: Trace, plan: Plan, capture: bool = True) -> Replay:
    """The replay of a trace: by graphs if its device has them and ``capture`` is true."""
    graphs = get_device(trace.program.device).graphs
    return Replay(trace, plan) if graphs is None or not capture else CapturedReplay(trace, plan)


def _run_named(calls: list[KernelCall], instructions: Sequence[Instruction]) -> None:
    """Run calls during a capture. Raises CaptureError naming op, layer and line for what a kernel raises."""
    for (kernel, args), instruction in zip(calls, instructions, strict=True):
        try:
            kernel(*args)
        except DeviceFault:
            raise
        except Exception as error:
            tag = instruction.tag
            where = f"{instruction.op} in layer {tag.layer or '(root)'}, {tag.phase}, {tag.site}"
            raise CaptureError(f"{where}: {error}") from error

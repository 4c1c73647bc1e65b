"""Verifies a program from a file: the shapes of every instruction are inferred again, and every operand has to fit its buffer.

Nothing is allocated for tensors here. A verified program can be planned, and replayed without access outside its buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from gradcore.devices.device import Device
from gradcore.engine.plans import Call, infer
from gradcore.errors import ProgramError, SpecError
from gradcore.ops.op import Inferred, Op, all_ops
from gradcore.program.program import Instruction, Number, Operand, Program, with_lifetimes
from gradcore.program.shipping.encoding import LARGEST
from gradcore.spec import TensorSpec

#: Ops that write into a result whose shape is an attribute: the op that they are the gradient of, the attribute, and the
#: position of the result among that op's operands. The op must make the cotangent's shape of it, or the kernel would write
#: elsewhere.
_GRADIENTS = {"slice_grad": ("slice", "shape", 0), "windows_grad": ("windows", "shape", 0),
              "as_strided_grad": ("as_strided", "like", 0), "conv2d_input_grad": ("conv2d", "shape", 0),
              "conv2d_weight_grad": ("conv2d", "shape", 1), "avg_pool2d_grad": ("avg_pool2d", "shape", 0),
              "adaptive_avg_pool2d_grad": ("adaptive_avg_pool2d", "shape", 0), "embedding_grad": ("embedding", "shape", 0),
              "take_grad": ("take", "shape", 0), "take_along_grad": ("take_along", "shape", 0)}
#: Other ops that read what one made, whose operands and results have the same names there: that op, unless its name says it.
_READERS = {"mse_grad": "mse_loss", "shrink_grad": "hardshrink", "max_pool2d_take": "max_pool2d"}
#: The operand that tells the shape of an operand ``given`` that such an op lacks, and the part of its last dimension that
#: this is.
_GIVEN = {"rnn_grad": ("out", Fraction(1)), "lstm_grad": ("gates", Fraction(1)), "gru_grad": ("gates", Fraction(3, 4))}
#: The state of a generator, which ops take as ``state``.
_STATE = TensorSpec.of((4,), "int64")
#: Types of operands that are not tensors.
_PLAIN = (bool, int, float, type(None))


def checked_calls(program: Program, numbers: Sequence[tuple[Any, ...]], survivors: set[int], device: Device) -> list[Call]:
    """The calls of a program's instructions on a device.

    ``numbers`` are the numbers of each update, as its op takes them; ``survivors`` are the buffers that outlive a run. Raises
    :class:`ProgramError`.
    """
    check = _Check(program, numbers, device)
    calls = [check.instruction(k, i) for k, i in enumerate(program.instructions)]
    check.ends(survivors)
    return calls


class _Check:
    def __init__(self, program: Program, numbers: Sequence[tuple[Any, ...]], device: Device) -> None:
        self.program = program
        self.numbers = numbers
        self.device = device
        self.ops = all_ops()
        #: Buffers that have been written at this point.
        self.there = {b.index for b in program.buffers if b.kind != "made"}
        if not program.instructions:
            raise ProgramError("a program has at least one instruction")
        if sum(b.nbytes for b in program.buffers) >= LARGEST:
            raise ProgramError(f"the buffers have more than {LARGEST} bytes together")

    def instruction(self, k: int, i: Instruction) -> Call:
        where = f"instruction {k}, {i.op[:40]}"
        op = self.ops.get(i.op)
        if op is None or op.view:
            raise ProgramError(f"{where}: unknown op")
        call = self._inferred(where, op, i)
        if call.scattered:
            raise ProgramError(f"{where}: operand {call.scattered[0]} must be contiguous")
        if tuple(call.writes) != i.writes:
            raise ProgramError(f"{where}: it writes to operands {call.writes}, not to {i.writes}")
        for at in call.writes:
            target = call.inputs[at]
            if target.overlapping or (op.in_place and len(call.writes) == 1 and call.specs
                                      and call.specs[0].shape != target.shape):
                raise ProgramError(f"{where}: it cannot write to {target}")
        specs = (*(() if op.in_place else call.specs), *(spec for _, spec in call.aux))
        if specs != tuple(x.spec for x in i.outputs):
            raise ProgramError(f"{where}: its results are {specs}, not {tuple(x.spec for x in i.outputs)}")
        if (None if i.workspace is None else i.workspace.spec) is not call.workspace:
            raise ProgramError(f"{where}: its workspace is {call.workspace}, not {i.workspace and i.workspace.spec}")
        for x in i.made():
            self._makes(where, x)
        return call

    def _inferred(self, where: str, op: Op, i: Instruction) -> Call:
        if len(i.counts) != len(op.inputs) or sum(i.counts) != len(i.operands) or any(
                n != 1 for k, n in enumerate(i.counts) if k not in op.lists):
            raise ProgramError(f"{where}: {len(i.operands)} operands in groups of {i.counts} do not match the inputs "
                               f"{op.inputs}")
        specs: list[Any] = []
        listed = [k in op.lists for k, n in enumerate(i.counts) for _ in range(n)]
        #: Among the operands that are in no list: an update's numbers, of which some may be tensors.
        position = 0
        for k, x in enumerate(i.operands):
            if isinstance(x, Operand):
                specs.append(self._read(f"{where}, operand {k}", x))
            else:
                value = x
                if isinstance(x, Number):
                    found = self.numbers[x.update]
                    if x.position != position or position >= len(found):
                        raise ProgramError(f"{where}, operand {k}: update {x.update} has {len(found)} numbers, in order")
                    value = found[position]
                if type(value) not in _PLAIN:
                    raise ProgramError(f"{where}, operand {k}: a number is bool, int or float, but got {type(value).__name__}")
                specs.append(type(value))
            position += not listed[k]
        attrs = dict(i.attrs)
        try:
            if i.op in _GRADIENTS:
                self._fits_forward(i.op, specs, attrs)
            elif i.op in _READERS or (i.op.endswith("_grad") and i.op.removesuffix("_grad") in self.ops):
                self._fits_results(op, specs, attrs)
            if "state" in op.inputs and specs[op.inputs.index("state")] not in (_STATE, type(None)):
                raise SpecError(f"the state of a generator is {_STATE}, but got {specs[op.inputs.index('state')]}")
            return infer(op, tuple(specs), i.counts, attrs, self.device)
        except Exception as error:
            text = f"{type(error).__name__}: {str(error)[:200]}"
            raise ProgramError(f"{where}: it cannot run on these operands: {text}") from None

    def _fits_forward(self, name: str, specs: list[Any], attrs: dict[str, Any]) -> None:
        forward, shape, at = _GRADIENTS[name]
        op = self.ops[forward]
        dy, *others = specs
        others.insert(at, TensorSpec.of(attrs[shape], dy.dtype))
        options = {n: v for n, v in attrs.items() if n in op.attrs}
        if forward == "as_strided":
            options["shape"] = dy.shape
        elif forward == "adaptive_avg_pool2d":
            options["size"] = dy.shape[2:]
        found = Inferred.of(op.infer(*others, **options)).outputs[0]
        if found.shape != dy.shape or (op.view and not found.fits(others[at].nbytes)):
            raise SpecError(f"{forward} of {others[at]} makes {found}, but the cotangent is {dy}")

    def _fits_results(self, op: Op, specs: list[Any], attrs: dict[str, Any]) -> None:
        """Raise :class:`SpecError` for a cotangent, or a result of forward, that forward makes of another shape or dtype."""
        name = _READERS.get(op.name, op.name.removesuffix("_grad"))
        forward, given = self.ops[name], dict(zip(op.inputs, specs, strict=True))
        if "shape" in op.attrs and "x" not in given:
            given["x"] = TensorSpec.of(attrs["shape"], given["dy"].dtype)
        if op.name in _GIVEN:
            like, part = _GIVEN[op.name]
            *most, last = given[like].shape
            given["given"] = TensorSpec.of((*most, int(last * part)), given[like].dtype)
        operands = [given.get(n, type(None)) for n in forward.inputs]
        if any(s is type(None) for n, s in zip(forward.inputs, operands, strict=True) if n not in forward.optional):
            # The gradient of a linear layer may lack one: its own shape rule compares the rest.
            return
        # Numbers that the gradient lacks decide no shape.
        options: list[dict[str, Any]] = [
            {n: attrs.get(n, 1.0) for n in forward.attrs if n in attrs or n in ("eps", "momentum")}]
        if "ceil_mode" in forward.attrs:
            # The gradient does not say.
            options = [{**options[0], "ceil_mode": up} for up in (False, True)]
        wrong = None
        for some in options:
            found = Inferred.of(forward.infer(*[None if s is type(None) else s for s in operands], **some))
            made = dict(zip(forward.outputs, found.outputs, strict=True)) | dict(found.aux)
            made |= {"dy": found.outputs[0], "dlast": found.outputs[-1]}
            wrong = next((f"{n} is {given[n]}, but {name} makes {s}" for n, s in made.items()
                          if isinstance(given.get(n), TensorSpec) and n not in forward.inputs
                          and (given[n].shape, given[n].dtype) != (s.shape, s.dtype)), None)
            if wrong is None:
                return
        raise SpecError(str(wrong))

    def _read(self, where: str, x: Operand) -> TensorSpec:
        if x.buffer not in self.there:
            raise ProgramError(f"{where}: buffer {x.buffer} is read before anything was written to it")
        if not x.spec.fits(self.program.buffers[x.buffer].nbytes):
            raise ProgramError(f"{where}: {x.spec} does not fit in the {self.program.buffers[x.buffer].nbytes} bytes of buffer "
                               f"{x.buffer}")
        return x.spec

    def _makes(self, where: str, x: Operand) -> None:
        buffer = self.program.buffers[x.buffer]
        if x.buffer in self.there:
            raise ProgramError(f"{where}: buffer {x.buffer} is made a second time")
        if buffer.nbytes != x.spec.nbytes:
            raise ProgramError(f"{where}: {x.spec} has {x.spec.nbytes} bytes, but buffer {x.buffer} has {buffer.nbytes}")
        self.there.add(x.buffer)

    def ends(self, survivors: set[int]) -> None:
        """Check inputs and outputs, and the lifetimes of all buffers."""
        for k, x in enumerate((*self.program.inputs, *self.program.outputs)):
            self._read(f"input or output {k}", x)
        missing = [b.index for b in self.program.buffers if b.index not in self.there]
        if missing:
            raise ProgramError(f"buffer {missing[0]} is never made")
        lives = with_lifetimes(self.program, survivors).buffers
        for own, found in zip(self.program.buffers, lives, strict=True):
            if own != found:
                raise ProgramError(f"buffer {own.index} lives from {found.first} to {found.last}, not from {own.first} to "
                                   f"{own.last}")

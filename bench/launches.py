"""Counts the CUDA kernels that a training step launches, without a GPU: ``python -m bench.launches``.

The step is traced on meta, and the CUDA kernels of its instructions run over arrays without memory, with launches and matrix
products counted instead of executed. Needs CuPy, but no driver. Products are assumed to support every epilogue; a product
counts as one kernel, even if the library splits it.

``--host`` times the host's Python code of an eager step instead: the engine above the kernels, with CuPy's array objects; then
the code between the engine and the launches, as the kernels are written, and written out as calls, as an eager step runs it
from the third time on (``gradcore/devices/gpu/again.py``).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from statistics import median
from time import perf_counter
from typing import Any
from unittest import mock

import gradcore
from bench.workloads import WORKLOADS, step_on
from gradcore.devices.device import Device
from gradcore.devices.meta import MetaDevice
from gradcore.engine.plans import Call
from gradcore.ops.op import get_op
from gradcore.program.planning.fusion import groups
from gradcore.program.planning.plan import Plan
from gradcore.program.program import Number, Operand, Program
from gradcore.spec import round_up

#: Kernels of PyTorch's eager steps, counted on a GPU when the goals were set.
TORCH = {"small": 25, "large": 37, "cnn": 48, "gpt": 225}


class _Library:
    """A stand-in for the library of matrix products, which accepts any epilogue of cuBLASLt's and computes nothing."""

    unseen = ""

    def __init__(self, noted: Counter[str]) -> None:
        self._noted = noted

    def plan(self, problem: Any) -> Any:
        from gradcore.devices.gpu.problems import EPILOGUES
        from gradcore.devices.gpu.products import suits

        return problem if problem.then in EPILOGUES or suits(problem) else None

    def exact(self, *asked: Any) -> bool:
        return True

    def run(self, plan: Any, *addresses: int) -> None:
        self._noted[f"product, {plan.then}" if plan.then else "product"] += 1


class _Device:
    """The parts of a CUDA device that binding an op needs."""

    def __init__(self) -> None:
        from gradcore.devices.gpu.kernels import KERNELS

        self._table = KERNELS

    def kernel(self, name: str) -> Callable[..., Any]:
        return self._table[name]

    def suited(self, kernel: Callable[..., Any], operands: Any) -> tuple[Callable[..., Any], int]:
        from gradcore.devices.adapting import numbers_fitted

        return numbers_fitted(kernel, operands), 0

    def bind(self, kernel: Callable[..., Any], op: str = "", any_strides: bool = False) -> Callable[..., Any]:
        return kernel


@contextmanager
def noting() -> Iterator[Counter[str]]:
    """Within the block, launches of CUDA kernels are counted by name instead of executed."""
    from gradcore.devices.gpu import gemm as gpu_gemm
    from gradcore.devices.gpu import launch as gpu_launch

    noted: Counter[str] = Counter()

    def launch(family: str, instance: str, *rest: Any) -> None:
        noted[f"{family}: {instance}"] += 1

    def clear(pointer: Any, nbytes: int) -> None:
        noted["memset"] += 1

    library = _Library(noted)
    with mock.patch.multiple(gpu_launch, launch=launch, clear=clear), mock.patch.object(gpu_gemm, "library", lambda: library):
        yield noted


def calls_of(program: Program, plan: Plan, fused: bool) -> list[tuple[Any, list[Any]]]:
    """The calls of a program's kernels, one by one, or ``fused`` as in a replay."""
    from gradcore.devices.gpu import fused as gpu_fused
    from gradcore.devices.gpu.device import SegmentMemory, array_over

    device, nowhere = _Device(), SegmentMemory(1 << 40, 1 << 40, 0)
    starts, end = dict(plan.offsets), plan.nbytes
    for b in program.buffers:
        if b.index not in starts:
            starts[b.index] = end
            end += round_up(b.nbytes)

    def argument(x: Any) -> Any:
        if isinstance(x, Operand):
            x = plan.seen(x) if fused else x
            return array_over(nowhere, starts[x.buffer], x.spec)
        return 0.1 if isinstance(x, Number) else x

    steps: list[list[Any]] = []
    for i in program.instructions:
        specs = tuple(x.spec if isinstance(x, Operand) else float if isinstance(x, Number) else type(x) for x in i.operands)
        if fused and i.outputs and i.outputs[0].buffer in plan.wholes:
            steps.append([])
            continue
        call = Call(get_op(i.op), specs, i.counts, dict(i.attrs), device)  # type: ignore[arg-type]
        workspace = () if i.workspace is None else (i.workspace,)
        steps.append([(call.kernel, [argument(x) for x in (*i.operands, *i.outputs, *workspace)])])
    for kind, first, length in groups(program) if fused else ():
        together = gpu_fused.fused(kind, steps[first:first + length], device.bind)
        if together is not None:
            steps[first:first + length] = together
    return list(chain(*steps))


def launches(program: Program, plan: Plan, fused: bool) -> Counter[str]:
    """The number of launches of a program, by kernel."""
    with noting() as noted:
        for kernel, args in calls_of(program, plan, fused):
            kernel(*args)
    return noted


def host(name: str, rounds: int = 40) -> dict[str, float]:
    """Host seconds of a model's eager step, without launches: medians of interleaved rounds."""
    from gradcore.devices.gpu.again import again

    step, batch = step_on(gradcore, WORKLOADS[name], "meta")
    plain = calls_of(*traced(step, batch), False)

    def calling(calls: list[tuple[Any, list[Any]]]) -> None:
        for kernel, args in calls:
            kernel(*args)

    ways = {"the engine": partial(step, *batch), "kernels as written": partial(calling, plain),
            "written out": partial(calling, [(again(kernel), args) for kernel, args in plain])}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    with noting(), cupy_arrays():
        for _ in range(rounds):
            for way, run in ways.items():
                start = perf_counter()
                run()
                taken[way].append(perf_counter() - start)
    return {way: median(seconds) for way, seconds in taken.items()}


@contextmanager
def cupy_arrays() -> Iterator[None]:
    """Within the block, the meta device makes an array object of CuPy's for each tensor, over an address without memory."""
    from gradcore.devices.gpu.device import SegmentMemory, array_over

    owners: dict[int, Any] = {}

    def make(_: Any, block: Any, spec: Any) -> Any:
        segment = block.segment
        if segment.index not in owners:
            owners[segment.index] = SegmentMemory((1 << 40) + segment.address, segment.nbytes, 0)
        return array_over(owners[segment.index], block.offset, spec)

    with mock.patch.multiple(MetaDevice, array=Device.array, make_array=make):
        yield


def traced(step: Callable[..., Any], batch: tuple[Any, ...]) -> tuple[Program, Plan]:
    """The program and plan of a training step."""
    compiled = gradcore.compile(step)
    for _ in range(2):
        compiled(*batch)
    return compiled.programs[0], compiled.plans[0]


def counted(name: str) -> dict[str, Counter[str]]:
    """The launches of one training step of a model, eager and replayed."""
    program, plan = traced(*step_on(gradcore, WORKLOADS[name], "meta"))
    return {"eager": launches(program, plan, False), "replayed": launches(program, plan, True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=tuple(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--kernels", action="store_true", help="also name the kernels of a replayed step")
    parser.add_argument("--host", action="store_true", help="time the host's Python instead")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.host:
        costs = {name: host(name) for name in options.models}
        if options.json:
            print(json.dumps(costs, indent=2))
            return
        for name, of in costs.items():
            print(f"{name:6} {WORKLOADS[name].about}: " + ", ".join(f"{way} {s * 1e6:,.0f} us" for way, s in of.items()))
        return
    found = {name: counted(name) for name in options.models}
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name, of in found.items():
        totals = {how: sum(kernels.values()) for how, kernels in of.items()}
        print(f"{name:6} {WORKLOADS[name].about}: {totals['eager']} launches eagerly, {totals['replayed']} replayed; "
              f"PyTorch's eager step {TORCH[name]}")
        for kernel, count in of["replayed"].most_common() if options.kernels else ():
            print(f"{count:8}  {kernel}")


if __name__ == "__main__":
    main()

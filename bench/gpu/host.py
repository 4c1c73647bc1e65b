"""Host time of a call by layer: a launch alone, a binding alone, a kernel's Python code, an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradcore
from bench.gpu.clock import host_seconds
from bench.gpu.part import Outcome, Setting
from bench.gpu.speed import Recorder, recorded


@recorded
def host_cost(setting: Setting, recorder: Recorder) -> Outcome:
    """Microseconds of host time for one small call, while the device keeps up."""
    device, on = gradcore.device(setting.device), {"device": setting.device}
    a, b = gradcore.ones(64, **on), gradcore.ones(64, **on)
    square = gradcore.ones(64, 64, **on)
    added, bare = recorder.again("add", a, b)
    multiplied, product = recorder.again("matmul", square, square, transpose_a=False, transpose_b=False)
    wanting = gradcore.ones(64, requires_grad=True, **on)
    runs: dict[str, Callable[[], Any]] = {
        "add: its kernel": bare, "add: a + b": lambda: a + b, "add: a + b with a gradient": lambda: wanting + b,
        "product: its kernel": product, "product: a @ b": lambda: square @ square}
    if setting.device == "cuda":
        import cupy

        x, y, out = (cupy.ones(64, cupy.float32) for _ in range(3))
        written_out, arrays = device.bind(device.kernels["add"], "add"), (x, y, out)
        for _ in range(3):
            written_out(*arrays)
        runs = {"add: cupy.add": lambda: cupy.add(x, y, out), "add: its RawKernel alone": launch_of(bare),
                "add: its kernel, written out": lambda: written_out(*arrays),
                "product: the library's call alone": call_of(product), **runs}
    outcome = Outcome(table=[["call", "microseconds"]])
    for name, run in runs.items():
        best = outcome.figures[name] = host_seconds(run, device, 50 if setting.rehearsal else 1000)
        outcome.table.append([name, f"{best * 1e6:.1f}"])
        setting.keep(outcome)
    del added, multiplied
    outcome.summary = ", ".join(f"{name}: {text} us" for name, text in outcome.table[1:])
    return outcome


def launch_of(run: Callable[[], Any]) -> Callable[[], Any]:
    """The single launch that ``run`` makes of one of our kernels, as a function with the same arguments."""
    from cupy.cuda import runtime

    from gradcore.devices.gpu import launch as gpu_launch

    made: list[tuple[Any, ...]] = []
    usual = gpu_launch.launch
    gpu_launch.launch = lambda *what: made.append(what)
    try:
        run()
    finally:
        gpu_launch.launch = usual
    (family, instance, blocks, threads, arguments), = made
    function = gpu_launch._function(family, instance, runtime.getDevice())
    return lambda: function((blocks,), (threads,), arguments)


def call_of(run: Callable[[], Any]) -> Callable[[], Any]:
    """The single library matrix product that ``run`` makes, as a function, already planned."""
    from gradcore.devices.gpu import gemm as gpu_gemm

    library: Any = gpu_gemm.library()
    made: list[tuple[Any, ...]] = []
    library.run = lambda *what: made.append(what)
    try:
        run()
    finally:
        del library.run
    what, = made
    return lambda: library.run(*what)

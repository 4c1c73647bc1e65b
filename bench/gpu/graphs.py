"""Training steps captured as one CUDA graph: time relative to eager steps and to PyTorch's graph, kernels, host cost."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any

import gradcore
from bench.gpu.clock import host_seconds, medians
from bench.gpu.part import Outcome, Setting
from bench.gpu.steps import BATCHES, initial_weights, precision, torch_on
from bench.workloads import WORKLOADS, Workload, step_on

#: cudaGraphNodeType.
_KINDS = {0: "kernels", 1: "copies", 2: "memsets"}


class Counting:
    """A wrapper of the CUDA runtime that counts the nodes of the graphs that it instantiates."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self.nodes: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cuda, name)

    def graphInstantiate(self, graph: int) -> int:
        self.nodes += nodes_of(graph)
        found: int = self._cuda.graphInstantiate(graph)
        return found


def nodes_of(graph: int) -> Counter[str]:
    """A graph's nodes by kind, as the driver counts them."""
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()

    def ask(name: str, *arguments: Any) -> None:
        status = getattr(driver, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} returned {status}")

    ask("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
    nodes, kind, found = (ctypes.c_void_p * count.value)(), ctypes.c_int(), Counter[str]()
    if count.value:
        ask("cuGraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    for node in nodes:
        ask("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        found[_KINDS.get(kind.value, "others")] += 1
    return found


def graphs(setting: Setting) -> Outcome:
    """For four models: losses must equal eager ones bit by bit; medians of interleaved rounds; a step that copies its batch.

    Batches that keep a GPU busy come last, without TF32 and with it, as long as half of the time is left.
    """
    torch, start = torch_on(setting), perf_counter()
    outcome = Outcome(table=[["model", "batch", "eager ms", "one by one ms", "captured ms", "torch ms", "torch graph ms",
                              "of torch", "of torch graph", "kernels", "host us"]])
    chosen = [(name, sizes[0], False) for name, sizes in BATCHES.items()]
    if not setting.rehearsal:
        chosen += [(name, sizes[-1], tf32) for tf32 in (False, True) for name, sizes in BATCHES.items()]
    for k, (name, batch, tf32) in enumerate(chosen):
        if k >= len(BATCHES) and perf_counter() - start > setting.seconds / 2:
            break
        workload = WORKLOADS[name].with_batch(2 if setting.rehearsal else batch)
        name += ", TF32" if tf32 else ""
        try:
            with precision(torch, tf32):
                _compare(name, workload, torch, setting, outcome)
        except Exception as error:
            outcome.problems.append(f"{name}, batch {batch}: {type(error).__name__}: {str(error)[:800]}")
        setting.keep(outcome)
    outcome.summary = "; ".join(f"{row[0]} {row[1]}: {row[4] or row[3]} ms" + (f", {row[8]} of torch's graph" if row[8] else "")
                                for row in outcome.table[1:])
    return outcome


def _compare(name: str, workload: Workload, torch: Any, setting: Setting, outcome: Outcome) -> None:
    device, weights = gradcore.device(setting.device), initial_weights(workload, torch)
    runs: dict[str, Callable[[], Any]] = {}
    losses, counted, compiled = {}, None, None
    if device.graphs is not None:
        counted = device.graphs._cuda = Counting(device.graphs._cuda)
    for how in ("eager", "one by one", *(("captured",) if counted is not None else ())):
        step, batch = step_on(gradcore, workload, setting.device, weights)
        if how != "eager":
            step = compiled = gradcore.compile(step, capture=how == "captured")
        runs[how] = lambda step=step, batch=batch: step(*batch)  # type: ignore[misc]
        losses[how] = [runs[how]().item() for _ in range(6)]
    if counted is not None:
        assert device.graphs is not None and compiled is not None
        device.graphs._cuda = counted._cuda
        if "are captured in one graph" not in compiled.explain():
            outcome.problems.append(f"{name} is not captured: {compiled.explain()[-800:]}")
    outcome.problems += [f"{name}: losses {how} are {found}, eager {losses['eager']}"
                         for how, found in losses.items() if found != losses["eager"]]
    if torch is not None:
        runs |= _torch_runs(name, workload, torch, weights, setting, outcome)
    found = medians(runs, device, 1 if setting.rehearsal else 15)
    host = host_seconds(runs["captured" if "captured" in runs else "one by one"], device, 1 if setting.rehearsal else 20)
    best = found.get("captured", found["one by one"])
    cells = [f"{found[how] * 1e3:.3f}" if how in found else "" for how in ("eager", "one by one", "captured", "torch",
                                                                          "torch graph")]
    ratios = [f"{best / found[how]:.2f}" if how in found else "" for how in ("torch", "torch graph")]
    kernels = dict(counted.nodes) if counted is not None else {}
    outcome.table.append([name, str(workload.batch), *cells, *ratios, str(kernels.get("kernels", "")), f"{host * 1e6:.1f}"])
    outcome.figures[f"{name} {workload.batch}"] = {"seconds": found, "nodes": kernels, "host": host, "losses": losses["eager"]}


def _torch_runs(name: str, workload: Workload, torch: Any, weights: Any, setting: Setting,
                outcome: Outcome) -> dict[str, Callable[[], Any]]:
    """PyTorch's eager step, and on a GPU its graph. If one fails, ours are measured all the same."""
    step, batch = step_on(torch, workload, setting.device, weights)
    makes: dict[str, Callable[[], Callable[[], Any]]] = {"torch": lambda: lambda: step(*batch)}
    if setting.device == "cuda":
        makes["torch graph"] = lambda: torch_graph(torch, workload, weights)
    runs = {}
    for how, make in makes.items():
        try:
            runs[how] = make()
            runs[how]()
        except Exception as error:
            runs.pop(how, None)
            outcome.problems.append(f"{name}, {how}: {type(error).__name__}: {str(error)[:800]}")
    return runs


def torch_graph(torch: Any, workload: Workload, weights: Any) -> Callable[[], Any]:
    """A training step of PyTorch as a CUDA graph, with the batch copied before each replay."""
    more = {"capturable": True} if workload.optimizer == "Adam" else {}
    step, batch = step_on(torch, workload, "cuda", weights, **more)
    static = [t.clone() for t in batch]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(*static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(*static)

    def replay() -> Any:
        for target, t in zip(static, batch, strict=True):
            target.copy_(t)
        graph.replay()
        return loss

    return replay

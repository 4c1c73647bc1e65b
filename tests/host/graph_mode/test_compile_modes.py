"""Modes that a compiled function sets itself: a replay begins as the traced run did, and leaves modules as it did."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.utils.checkpoint import checkpoint


def both(run: Callable[[Callable[[Any], Any]], Any]) -> tuple[Any, Any, Any]:
    """What a run gives eagerly and compiled, and the compiled function."""
    made: list[Any] = []

    def compiled(f: Any) -> Any:
        made.append(gradcore.compile(f))
        return made[0]

    found = []
    for wrap in (lambda f: f, compiled):
        gradcore.manual_seed(0)
        found.append(run(wrap))
    return found[0], found[1], made[0]


def network() -> Any:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))


def modes(model: Any) -> list[bool]:
    return [m.training for m in model.modules()]


def test_a_function_that_ends_in_another_mode_than_it_began_in() -> None:
    def run(wrap: Any) -> Any:
        model = network()

        def f(x: Any) -> Any:
            first = model(x).sum()
            model.eval()
            return first.detach(), model(x).sum().detach()

        f, seen = wrap(f), []
        for k in range(8):
            model.train(k % 3 == 0)
            gradcore.manual_seed(k)
            found = f(gradcore.ones(4, 2) * k)
            seen.append(([t.item() for t in found], modes(model), model[1].running_mean.tolist()))
        return seen

    eager, compiled, f = both(run)
    assert eager == compiled and len(f.programs) == 2 and len(f.traces) <= 3


def test_a_function_that_sets_its_mode_first_is_traced_once() -> None:
    def run(wrap: Any) -> Any:
        model = network()

        def f(x: Any) -> Any:
            model.train()
            return model(x).sum().detach()

        f, seen = wrap(f), []
        for k in range(6):
            model.eval()
            gradcore.manual_seed(k)
            seen.append((f(gradcore.ones(4, 2) * k).item(), modes(model), model[1].running_var.tolist()))
        return seen

    eager, compiled, f = both(run)
    assert eager == compiled and len(f.traces) == 1


def test_one_layer_in_another_mode() -> None:
    def run(wrap: Any) -> Any:
        model = network()

        def f(x: Any) -> Any:
            model[1].eval()
            found = model(x).sum().detach()
            model[1].train()
            return found

        f, seen = wrap(f), []
        for k in range(6):
            model.train(k < 4)
            gradcore.manual_seed(k)
            seen.append((f(gradcore.ones(4, 2) * k).item(), modes(model), model[1].running_var.tolist()))
        return seen

    eager, compiled, f = both(run)
    assert eager == compiled and len(f.programs) == 2


def test_a_program_keeps_no_casts_of_the_region_that_it_was_traced_in() -> None:
    model, x = nn.Linear(50, 50), gradcore.ones(3, 50)

    @gradcore.compile
    def double(x: Any) -> Any:
        return x * 2

    def live() -> int:
        with gradcore.no_grad(), gradcore.autocast("cpu"):
            double(x)
            # Eagerly, in the same region, which keeps a cast of the weight until it ends.
            model(x)
        return gradcore.memory_allocated()

    before = gradcore.memory_allocated()
    assert [live() - before for _ in range(3)] == [0, 0, 0] and double.programs


def test_a_module_with_a_checkpoint_is_replayed_in_a_region() -> None:
    found = []
    for wrap in (lambda f: f, gradcore.compile):
        gradcore.manual_seed(0)
        block, head = nn.Linear(4, 4), nn.Linear(4, 2)
        f = wrap(lambda x, block=block, head=head: head(checkpoint(block, x, use_reentrant=False)))
        for k in range(3):
            with gradcore.autocast("cpu", dtype=gradcore.bfloat16):
                loss = f(gradcore.ones(2, 4) * k).float().square().sum()
            loss.backward()
            found.append((loss.item(), [p.grad.tolist() for p in (*block.parameters(), *head.parameters())]))
    assert found[:3] == found[3:] and len(f.programs) == 1, f.traces


SETS: dict[str, tuple[Callable[[Any], Any], Callable[[], Any], Any, Any, str]] = {
    "the grad mode": (gradcore.set_grad_enabled, gradcore.is_grad_enabled, True, False, "leaves the mode grad as False"),
    "the default dtype": (gradcore.set_default_dtype, gradcore.get_default_dtype, gradcore.float32, gradcore.float64,
                          "leaves the mode default dtype as float64, and found float32"),
    "the default device": (gradcore.set_default_device, lambda: gradcore.get_default_device().name, "cpu", "meta",
                           "leaves the mode default device as meta"),
    "anomalies": (gradcore.autograd.set_detect_anomaly, gradcore.is_anomaly_enabled, False, True, "leaves the mode anomaly"),
    "the precision": (gradcore.set_float32_matmul_precision, gradcore.get_float32_matmul_precision, "highest", "high",
                      "calls set_float32_matmul_precision(), which a replay would not do"),
    "TF32": (partial(setattr, gradcore.backends.cuda.matmul, "allow_tf32"), lambda: gradcore.backends.cuda.matmul.allow_tf32,
             False, True, "calls set_float32_matmul_precision()"),
    "TF32 in convolutions": (partial(setattr, gradcore.backends.cudnn, "allow_tf32"),
                             lambda: gradcore.backends.cudnn.allow_tf32, True, False, "calls allow_in_convolutions()"),
    "determinism": (gradcore.use_deterministic_algorithms, gradcore.are_deterministic_algorithms_enabled, False, True,
                    "calls use_deterministic_algorithms()"),
    "threads": (gradcore.set_num_threads, gradcore.get_num_threads, gradcore.get_num_threads(), 77, "calls set_num_threads()")}


@pytest.mark.parametrize("name", SETS)
def test_a_setting_that_a_function_leaves_changed_is_left_changed_by_each_call(name: str) -> None:
    sets, tells, usual, other, why = SETS[name]

    def f(x: Any) -> Any:
        y = x * 2
        sets(other)
        return y

    f = gradcore.compile(f)
    try:
        for _ in range(3):
            sets(usual)
            f(gradcore.ones(3, device="cpu"))
            assert tells() == other
        assert not f.programs and all(why in trace for trace in f.traces)
        # What is there already is set again: a replay leaves it as it is.
        for _ in range(3):
            f(gradcore.ones(3, device="cpu"))
        assert len(f.programs) == 1 and tells() == other
        sets(usual)
        f(gradcore.ones(3, device="cpu"))
        assert tells() == other
    finally:
        sets(usual)


#: Those that a function may ask for.
TOLD = {name: SETS[name][:4] for name in ("the precision", "TF32", "TF32 in convolutions", "determinism", "threads")} | {
    "warnings": (lambda on: gradcore.use_deterministic_algorithms(False, warn_only=on),
                 gradcore.is_deterministic_algorithms_warn_only_enabled, False, True)}


@pytest.mark.parametrize("name", TOLD)
def test_a_setting_that_a_function_asks_for_is_guarded(name: str) -> None:
    sets, tells, usual, other = TOLD[name]
    f = gradcore.compile(lambda x: x * 2 if tells() == other else x * 3)
    try:
        for setting, result in ((usual, 3), (other, 2), (usual, 3)):
            sets(setting)
            assert [f(gradcore.ones(1)).item() for _ in range(2)] == [result, result]
    finally:
        sets(usual)
    assert len(f.programs) == 2 == len(f.traces)


def test_under_detect_anomaly_the_callers_backward_finds_nan() -> None:
    p = gradcore.ones(2, requires_grad=True)
    f = gradcore.compile(lambda x: (x * p).sqrt().sum())
    for _ in range(3):
        with gradcore.autograd.detect_anomaly():
            y = f(gradcore.zeros(2))
            with pytest.raises(RuntimeError, match="returned nan values"):
                y.backward()
        f(gradcore.ones(2)).backward()
    assert len(f.programs) == 1 and "looks for NaN" in f.traces[0]


def test_the_reason_names_the_dtypes_of_a_region() -> None:
    f = gradcore.compile(lambda x: x @ x)
    f(gradcore.ones(2, 2))
    with gradcore.autocast("cpu", dtype=gradcore.bfloat16):
        f(gradcore.ones(2, 2))
        with gradcore.autocast("cpu", enabled=False):
            f(gradcore.ones(2, 2))
    assert f.traces[1:] == ["the mode is new: autocast is bfloat16 on cpu, bfloat16 on meta and was None",
                            "the mode is new: autocast is none and was bfloat16 on cpu, bfloat16 on meta"]


def test_a_module_that_has_no_hash_sets_its_mode() -> None:
    class Equal(nn.Module):
        def __eq__(self, other: object) -> bool:
            return type(self) is type(other)

        def forward(self, x: Any) -> Any:
            return nn.functional.dropout(x * 2, training=self.eval().training)

    f = gradcore.compile(model := Equal())
    assert [(f(gradcore.ones(2)).tolist(), model.train().training) for _ in range(3)] == [([2.0, 2.0], True)] * 3
    assert len(f.programs) == 1

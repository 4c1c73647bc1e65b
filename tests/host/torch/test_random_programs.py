"""Random training programs: values, gradients and errors are PyTorch's, the logs of cpu and meta are one, nothing stays live,
and replays have the bits of eager steps. A seed that fails prints its program.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import folds
from tests.host.torch.random_programs import HEAD, Program
from tests.logs import normalized

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")

#: The Python number that a step gets, by call.
NUMBERS = [1.5, 1.5, 1.5, 0.5, 1.5]
Outcome = tuple[list[dict[str, Any]], tuple[int, str] | None]


def run(program: Program, t: Any, calls: int, wrap: Callable[[Any], Any] = lambda f: f, look: bool = True) -> Outcome:
    """What can be seen after each call; and the line and the text of the error that ended the program, if one did."""
    def normal(seed: int, shape: tuple[int, ...]) -> Any:
        return t.tensor(np.random.default_rng(seed).standard_normal(shape))

    space: dict[str, Any] = {"torch": t, "normal": normal}
    exec(compile(HEAD, "<head>", "exec"), space)
    exec(compile(program.text, "<program>", "exec"), space)
    call, seen, failure = wrap(space["step"]), [], None
    try:
        for k in range(calls):
            given = [normal(100 * (k + 1) + j, v.shape).requires_grad_(v.wants) for j, v in enumerate(program.inputs)]
            found = call(*given, t.tensor(np.random.default_rng(k).integers(0, 12, (4,))), NUMBERS[k])
            space["scale"] = 0.75 if k == 3 else 1.25
            if look:
                tensors = {f"seen {i}": x for i, x in enumerate(found)} | {v.name: space[v.name] for v in program.leaves}
                tensors |= {"b": space["b"]} | {v.name: x for v, x in zip(program.inputs, given, strict=True)}
                tensors |= {f"{n}.grad": x.grad for n, x in tensors.items() if n[0] in "wx" and x.is_leaf}
                seen.append({n: None if x is None else x.detach().numpy().copy() for n, x in tensors.items()})
            given = found = tensors = None  # type: ignore[assignment]
    except RuntimeError as error:
        lines = [f.lineno or 0 for f in traceback.extract_tb(error.__traceback__) if f.filename == "<program>"]
        failure = lines[0], str(error)
        error.__traceback__ = None
    finally:
        given = found = tensors = call = None  # type: ignore[assignment]
        # Its functions refer to it.
        space.clear()
    return seen, failure


def difference(ours: Outcome, theirs: Outcome) -> str:
    """How two outcomes differ, "" if only as they may: an error in PyTorch may come later or never where less is kept here."""
    for k, (a, b) in enumerate(zip(ours[0], theirs[0], strict=False)):
        for name, expected in b.items():
            found = a[name]
            if (found is None) != (expected is None):
                return f"{name} after call {k} is {found}, but {expected} in PyTorch"
            if expected is not None and np.abs(expected).max(initial=0) < 1e8:
                np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8 * max(1, np.abs(expected).max(initial=0)),
                                           err_msg=f"{name} after call {k}")
    if ours[1] is not None and (theirs[1] is None or (theirs[1][0] > ours[1][0] and len(ours[0]) == len(theirs[0]))):
        return f"raises {ours[1]}, PyTorch {theirs[1]}"
    return ""


def checked(seeds: range, check: Callable[[Program], str]) -> None:
    for seed in seeds:
        program = Program(seed)
        try:
            wrong = check(program)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        lines = "\n".join(f"{i:3} {line}" for i, line in enumerate(program.text.split("\n"), 1))
        assert not wrong, f"seed {seed}: {wrong}\n\n{lines}"


@pytest.mark.oracle
@pytest.mark.parametrize("group", range(8))
def test_values_and_gradients_are_pytorchs(group: int, torch: Any) -> None:
    checked(range(30 * group, 30 * group + 30), lambda program: difference(run(program, gradcore, 3), run(program, torch, 3)))


def accounted(program: Program) -> str:
    """Runs on the CPU and on meta write the same log, whose peak is the report's and the ledger's; nothing stays."""
    logs = []
    for name in ("cpu", "meta"):
        gradcore.empty_cache(name)
        ledger = gradcore.device(name).ledger
        before = set(ledger.live)
        ledger.reset_peaks()
        with gradcore.device(name), gradcore.step(device=name) as step:
            failure = run(program, gradcore, 3, look=False)[1]
        if set(ledger.live) != before:
            return f"{len(ledger.live) - len(before)} blocks stay on {name}"
        peak, figures = folds.peak(step.log), step.report.peak
        if (peak.requested, peak.allocated) != (figures.requested, figures.allocated) or (
                peak.allocated, peak.reserved) != ledger.peaks[1:]:
            return f"{peak}, but the report has {figures} on {name}"
        logs.append((normalized(step.raw_log), failure and (failure[0], failure[1].replace(name, ""))))
    (records, error), (others, other) = logs
    if error != other:
        return f"raises {error} on cpu and {other} on meta"
    differ = [f"{a} on cpu and {b} on meta" for a, b in zip(records, others, strict=True) if a != b]
    return differ[0] if differ else ""


@pytest.mark.parametrize("group", range(8))
def test_cpu_and_meta_write_the_same_log_and_nothing_stays(group: int) -> None:
    checked(range(1000 + 25 * group, 1025 + 25 * group), accounted)


def recomputed(program: Program) -> str:
    with gradcore.recompute(False):
        kept = run(program, gradcore, 2)
    if kept[1] and "modified by an inplace operation" in kept[1][1]:
        # What is recomputed may be written to.
        return ""
    return bits(run(program, gradcore, 2), kept)


def bits(ours: Outcome, theirs: Outcome) -> str:
    if (ours[1] and ours[1][0]) != (theirs[1] and theirs[1][0]):
        return f"raises {ours[1]} and {theirs[1]}"
    for k, (a, b) in enumerate(zip(ours[0], theirs[0], strict=True)):
        for name, expected in b.items():
            if (a[name] is None) != (expected is None) or (expected is not None and a[name].tobytes() != expected.tobytes()):
                return f"{name} after call {k} is {a[name]} and {expected}"
    return ""


@pytest.mark.parametrize("group", range(3))
def test_recomputed_outputs_have_the_bits_of_kept_ones(group: int) -> None:
    checked(range(2000 + 25 * group, 2025 + 25 * group), recomputed)


@pytest.mark.parametrize("group", range(4))
def test_a_compiled_step_has_the_bits_of_the_eager_one(group: int) -> None:
    replayed = 0

    def same_bits(program: Program) -> str:
        nonlocal replayed
        compiled: list[Any] = []
        programs: list[Any] = []

        def wrap(step: Any) -> Any:
            compiled.append(gradcore.compile(step))

            def call(*args: Any) -> Any:
                try:
                    return compiled[0](*args)
                finally:
                    # They go with the leaves that they were traced with.
                    programs[:] = compiled[0].programs

            return call

        wrong = bits(run(program, gradcore, 5, wrap), run(program, gradcore, 5))
        call = compiled.pop()
        replayed += bool(programs)
        refused = any("cannot be replayed" in why for why in call.traces)
        return wrong or ("" if programs or refused or len(call.traces) < 3 else call.explain())

    checked(range(3000 + 20 * group, 3020 + 20 * group), same_bits)
    gc.collect()
    assert replayed >= 5

"""What a prompt or a notebook shows of large objects: a line, and not all of their numbers. Tables are as wide as names are."""

from __future__ import annotations

from pathlib import Path

import gradcore
from gradcore.report import RunWriter, StepFigures, compare, load_run
from tests.conftest import raises


def test_of_large_objects_a_line_is_shown(tmp_path: Path) -> None:
    assert repr(gradcore.data.load("digits")) == "<data set digits: 1,437 training and 360 test samples of 8x8, 10 classes>"
    text = gradcore.data.load("python-docs")
    assert repr(text) == (f"<text python-docs: {len(text.train):,} training and {len(text.test):,} test characters of "
                          f"{text.classes} kinds>")

    gradcore.empty_cache()
    double = gradcore.compile(lambda x: (x * 2).sum())
    x = gradcore.ones(3)
    double(x)
    assert repr(double.plans[0]) == "<plan of 2 buffers: arena 1,024 bytes, lower bound 1,024>"

    with gradcore.step(device="cpu") as step:
        y = x * 2
    path = tmp_path / "run.jsonl"
    with RunWriter(path, {}) as file:
        for number in (1, 2):
            file.add(StepFigures.of(number, None, step.report), step)
    peak = gradcore.units.format_bytes(step.report.peak.allocated)
    assert repr(load_run(path)) == f"<run of 2 steps: peak {peak} in step 1>"
    assert repr(compare(step, step.recording)) == f"<difference of two peaks: {peak} before, {peak} after>"
    del y


def test_steps_are_compared_as_their_recordings_are() -> None:
    with gradcore.step() as step:
        gradcore.ones(3)
    assert compare(step, step.recording).to_dict() == compare(step.recording, step.recording).to_dict()
    for other in ("runs/a.jsonl", step.report.to_dict(), None):
        with raises(TypeError, f"expected steps, recordings or reports to compare, but got {type(other).__name__}"):
            compare(step, other)  # type: ignore[arg-type]


def test_the_largest_tensors_of_ops_with_long_names_are_in_columns() -> None:
    x = gradcore.ones(2, 3, 16, 16, requires_grad=True)
    with gradcore.step() as step:
        gradcore.nn.functional.adaptive_avg_pool2d(x * 2, 8).sum().backward()
    assert "adaptive_avg_pool2d_grad" in {tensor.op for tensor in step.report.top}
    rows = str(step.report).partition("Largest tensors at the peak:\n")[2].partition("\n\n")[0].splitlines()
    assert len({row.index(" (root)") for row in rows}) == 1 < len(rows)

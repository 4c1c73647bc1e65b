"""The file of a run: bounded, readable whenever the run is killed, and an error if it is damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.cli.main import main
from gradcore.report import Recording, Run, RunWriter, StepFigures, load_run
from gradcore.report.run import RUN_VERSION
from tests.conftest import raises
from tests.meta.test_recording import recorded


@pytest.fixture(scope="module")
def recording() -> Recording:
    return recorded().recording


def write(path: Path, recording: Recording, peaks: list[int], events: tuple[int, ...] = (), end: bool = True,
          live: Callable[[int], int] = lambda step: 4) -> RunWriter:
    """A run whose steps have these peaks, and one recording for all."""
    writer = RunWriter(path, {"model": "mlp"}, events)
    for step, peak in enumerate(peaks, 1):
        writer.add(StepFigures(step, 1 / step, peak - 1, peak, 2 * peak, 3, 3, live(step), 0.5),
                   SimpleNamespace(recording=recording))
    if end:
        writer.close({"accuracy": 0.5, "loss": float("nan")})
    return writer


def kinds(path: Path) -> list[Any]:
    """Each line of the file: a step's number, or the kind of line with its step."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [r[0] if isinstance(r, list) else (r["kind"], r["step"]) if "step" in r else r["kind"] for r in rows]


def test_a_run_comes_back(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    write(path, recording, [100, 300, 200], events=(3,))
    run = load_run(path)
    assert run.about == {"model": "mlp"} and run.result == {"accuracy": 0.5, "loss": None}
    assert run.steps[1] == StepFigures(2, 0.5, 299, 300, 600, 3, 3, 4, 0.5) and len(run.steps) == 3
    assert run.recordings == {1: recording, 2: recording, 3: recording} and run.peak_step == 2
    assert run.find("first") == (1, recording) and run.find("last")[0] == 3 and run.find(2)[0] == 2


def test_a_recording_stands_for_its_step(tmp_path: Path, recording: Recording) -> None:
    with RunWriter(tmp_path / "run.jsonl", {}) as writer:
        writer.add(StepFigures(1, 0.5, 9, 10, 20, 3, 3, 4, 0.5), recording)
    assert load_run(tmp_path / "run.jsonl").recordings == {1: recording}


def test_a_loss_is_a_number_or_one_element(tmp_path: Path, recording: Recording) -> None:
    losses = 0.5, np.float32(0.5), gradcore.tensor([0.5]), gradcore.tensor(0.5, requires_grad=True)
    with RunWriter(tmp_path / "run.jsonl", {}) as run:
        for step, loss in enumerate(losses):
            run.add(StepFigures.of(step, loss, recording.report), SimpleNamespace(recording=recording))
    steps = load_run(tmp_path / "run.jsonl").steps
    assert [step.loss for step in steps] == [0.5] * 4
    assert {step.live for step in steps} == {recording.report.phases[-1].requested} != {0}


def test_a_run_that_cannot_be_begun_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        RunWriter(tmp_path / "run.jsonl", {"config": tmp_path})
    assert not list(tmp_path.iterdir())


def test_the_first_the_peak_the_last_and_those_asked_for(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "run.jsonl"
    write(path, recording, [100, 150, 160, 120, 110, 100], events=(4,))
    events = [kind for kind in kinds(path) if not isinstance(kind, int)]
    assert events == ["run", ("recording", 1), ("recording", 4), ("recording", 3), ("recording", 6), "end"]
    with raises(ValueError, "no events of step 2, only of 1, 3, 4, 6"):
        load_run(path).find(2)
    with raises(ValueError, "'first', 'last' or 'peak', but got 'top'"):
        load_run(path).find("top")


def test_peaks_are_written_as_they_come_but_not_every_one(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "run.jsonl"
    writer = write(path, recording, [800, 850, 899, 900, 1000, 1013], end=False)
    assert kinds(path) == ["run", 1, ("recording", 1), 2, 3, 4, ("recording", 4), 5, 6, ("recording", 6)]
    assert load_run(path).result is None
    mode = path.stat().st_mode
    writer.close()
    assert path.stat().st_mode == mode
    assert kinds(path) == ["run", 1, ("recording", 1), 2, 3, 4, 5, 6, ("recording", 6)]
    writer.close()
    assert [p.name for p in tmp_path.iterdir()] == ["run.jsonl"]


def test_a_number_that_comes_again_is_refused(tmp_path: Path, recording: Recording) -> None:
    """The peak of a second epoch's steps would be shown with the events of the first one's."""
    writer = write(tmp_path / "run.jsonl", recording, [1000, 2000], end=False)
    for step in (1, 2):
        with raises(ValueError, f"numbered upwards, through all epochs, but step {step} comes after step 2"):
            writer.add(StepFigures(step, 1.0, 2999, 3000, 6000, 3, 3, 4, 0.5), SimpleNamespace(recording=recording))
    writer.close()
    assert kinds(tmp_path / "run.jsonl") == ["run", 1, ("recording", 1), 2, ("recording", 2)]


def test_on_windows_lines_are_written_in_bytes_and_the_old_file_is_closed_before_it_is_replaced(
        tmp_path: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    binary, flags, files = 1 << 30, [], []
    real, opened, replace = os.open, Path.open, os.replace

    def low(file: Any, how: int, *mode: int) -> int:
        flags.append(how)
        return real(file, how & ~binary, *mode)

    def high(self: Path, *how: Any) -> Any:
        files.append(opened(self, *how))
        return files[-1]

    def replaced(*names: Any) -> None:
        assert len(files) == 2 and all(file.closed for file in files)
        replace(*names)

    monkeypatch.setattr(os, "O_BINARY", binary, raising=False)
    monkeypatch.setattr(os, "open", low)
    monkeypatch.setattr(Path, "open", high)
    monkeypatch.setattr(os, "replace", replaced)
    write(path, recording, [1000, 1200, 1210, 1400, 1300])
    assert flags[0] & binary and len(files) == 2


def test_a_hundred_thousand_steps_that_grow(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "run.jsonl"
    count, events = 100_000, len(json.dumps(recording.to_dict()))
    writer = write(path, recording, [1000 + 10 * n for n in range(count)], end=False)
    assert sum(isinstance(k, tuple) for k in kinds(path)) < 70
    assert path.stat().st_size < 80 * count + 70 * events
    writer.close()
    assert path.stat().st_size < 80 * count + 3 * events
    run = load_run(path)
    assert len(run.steps) == count and run.recordings.keys() == {1, count}


def test_cut_at_any_byte_it_can_be_read(tmp_path: Path, recording: Recording) -> None:
    path, cut = tmp_path / "run.jsonl", tmp_path / "cut.jsonl"
    write(path, Recording(recording.report, ()), [100, 300, 200])
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    ends = [i for i, byte in enumerate(whole) if byte == 10]
    for length in sorted({*range(0, len(whole), 37), *(end + n for end in ends for n in (-1, 0, 1, 2))}):
        cut.write_bytes(whole[:length])
        if length < header - 1:
            with raises(ValueError, "cut.jsonl"):
                load_run(cut)
        else:
            run = load_run(cut)
            lines = whole[:length].count(b"\n")
            assert len(run.steps) + len(run.recordings) + (run.result is not None) == max(lines - 1, 0)


def test_a_killed_training_leaves_its_run(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-m", "gradcore.cli.main", "train", "--steps", "100000", "--quiet", "--device",
                                "cpu", "--out", str(tmp_path)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (files := list(tmp_path.glob("*.jsonl"))) or files[0].read_bytes().count(b"\n") < 20:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    run = load_run(files[0])
    assert len(run.steps) >= 15 and run.result is None and run.about["planned_steps"] == 100_000
    assert run.find("first")[0] == 1 and run.find("peak")[1].records


def test_a_training_that_fails_leaves_its_run(capsys: Any, tmp_path: Path) -> None:
    assert main(["train", "--lr", "1e9", "--steps", "50", "--quiet", "--device", "cpu", "--out", str(tmp_path)]) == 1
    run = load_run(next(tmp_path.glob("*.jsonl")))
    assert run.result is None and run.steps[-1].loss is None and run.find("last")[0] == run.steps[-1].step


def test_a_training_that_fails_at_once_leaves_no_run_that_is_the_newest(capsys: Any, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("from gradcore import nn, ones, zeros\n\ndef net(n):\n"
                                       "    return nn.Linear(3, 3), (ones(n, 3), zeros(n, dtype=int))\n")
    arguments = ["train", "--steps", "1", "--quiet", "--device", "cpu", "--out", str(tmp_path / "runs")]
    assert main(arguments) == 0
    assert main([*arguments, "--model", f"{tmp_path / 'model.py'}:net"]) == 1
    assert len([*(tmp_path / "runs").iterdir()]) == 1


def test_runs_of_one_second_have_a_file_each(capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "now")
    for _ in range(3):
        assert main(["train", "--steps", "2", "--quiet", "--device", "cpu", "--events", "2", "--out", str(tmp_path)]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {f"now-mlp-digits{n}.jsonl" for n in ("", "-2", "-3")}


def test_a_full_disk_is_said(tmp_path: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    writer = write(path, recording, [100, 300], end=False)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with raises(OSError, "No space left on device: '", "run.jsonl'"):
        writer.add(StepFigures(3, None, 1, 1, 1, 1, 1, 1, 1.0), SimpleNamespace(recording=recording))
    with raises(OSError, "No space left"):
        writer.close({})
    monkeypatch.undo()
    assert len(load_run(path).steps) == 2
    with raises(FileExistsError, "run.jsonl"):
        RunWriter(path, {})


@pytest.mark.parametrize("written", [0, 10])
def test_a_line_that_fails_half_way_leaves_a_file_that_can_be_read(tmp_path: Path, recording: Recording, written: int,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.jsonl"
    writer = write(path, recording, [800, 1000], end=False)
    actual = os.write

    def interrupted(file: int, data: bytes) -> int:
        if written:
            actual(file, data[:written])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "write", interrupted)
        writer.add(StepFigures(3, None, 1, 1, 1, 1, 1, 1, 1.0), SimpleNamespace(recording=recording))
    writer.add(StepFigures(4, 0.5, 2999, 3000, 6000, 3, 3, 4, 0.5), SimpleNamespace(recording=recording))
    writer.close({})
    # The events of step 2 are no peak's any more, and have been left out.
    assert kinds(path) == ["run", 1, ("recording", 1), 2, 4, ("recording", 4), "end"]
    assert [s.step for s in load_run(path).steps] == [1, 2, 4]


HEADER = {"kind": "run", "version": RUN_VERSION, "about": {}, "columns": [
    "step", "loss", "requested", "allocated", "reserved", "kept", "returned", "live", "seconds"]}
ROW = [1, 0.5, 1, 2, 3, 4, 5, 6, 0.25]


@pytest.mark.parametrize(("line", "words"), [
    (ROW[:-1], "expected 9 figures of a step, but got 8"), ([*ROW[:-1], float("nan")], "NaN is not valid JSON"),
    ([*ROW[:-1], "x"], "StepFigures.seconds should be float, but is 'x'"),
    ([-1, *ROW[1:]], "sizes are at least 0"), ([True, *ROW[1:]], "StepFigures.step should be int, but is True"),
    ([1, 0.5, 1.5, *ROW[3:]], "StepFigures.requested should be int, but is 1.5"),
    ({"kind": "x"}, "unknown kind"), ({}, "'kind'"), ("x", "line 3"), ({"kind": "end", "result": 3}, "unknown kind"),
    ({"kind": "recording", "step": 1}, "step report"), ({"kind": "recording"}, "step report"), (None, "line 3")])
def test_a_damaged_line_is_named(tmp_path: Path, line: Any, words: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in (HEADER, ROW)))
    assert load_run(path) == Run({}, (StepFigures(*ROW),), {})  # type: ignore[arg-type]
    with raises(ValueError, "the file has no step's events"):
        load_run(path).find("peak")
    with raises(ValueError, "the run ended before its first step"):
        _ = Run({}, (), {}).peak_step
    path.write_text("".join(json.dumps(x) + "\n" for x in (HEADER, ROW, line)))
    with raises(ValueError, "run.jsonl, line 3", words):
        load_run(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "NaN", "[" * 100_000, '{"kind": "recording"}', '{"version": 1}', "\x00",
                                  '{"kind": "run", "version": 2}\n', '{"kind": "run", "version": 1, "about": {}}\n'])
def test_what_is_no_run(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with raises(ValueError, "run.jsonl"):
        load_run(path)


def test_one_recording_or_one_report_is_a_run_of_one_step(tmp_path: Path, recording: Recording) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(recording.to_dict(), indent=1))
    run = load_run(path)
    assert run.find("peak") == (1, recording) and run.steps[0].allocated == recording.report.peak.allocated
    path.write_text(recording.report.to_json())
    assert load_run(path).recordings == {1: Recording(recording.report, ())}
    # It does not say which step it is, unless it was exported from a run.
    assert not run.numbered and not load_run(path).numbered
    path.write_text(json.dumps({**recording.to_dict(), "step": 20}))
    run = load_run(path)
    assert run.numbered and run.find("peak") == (20, recording) and run.peak_step == 20 and not run.about
    path.write_text(json.dumps({**recording.to_dict(), "step": "20"}))
    with raises(ValueError, "expected a whole number, but got '20'"):
        load_run(path)

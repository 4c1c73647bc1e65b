"""Two steps beside each other: every byte that the peak gained or lost has an owner."""

from __future__ import annotations

import json

import pytest

import gradcore
from gradcore import nn
from gradcore.cli.main import main
from gradcore.report import Recording, load_run
from gradcore.report.diff import Diff, diff

TABLES = ("by_role", "by_layer", "by_op", "by_line")
PROGRAM = """
def train():
    with gradcore.step(batch_size={batch}, device="meta") as step:
        model = nn.Sequential(nn.Linear(64, {width}), nn.{act}(), nn.Linear({width}, 10)).to("meta")
        x = gradcore.zeros({batch}, 64, device="meta")
        model(x).sum().backward()
    return step.recording
"""


def made(*, width: int = 128, batch: int = 32, act: str = "ReLU", above: int = 0, file: str = "/here/model.py") -> Recording:
    names = {"gradcore": gradcore, "nn": nn}
    exec(compile("\n" * above + PROGRAM.format(width=width, batch=batch, act=act), file, "exec"), names)
    recording = names["train"]()
    names.clear()
    return recording


def by_name(found: Diff, table: str) -> dict[str, int]:
    return {c.name: c.gained for c in getattr(found, table)}


def test_each_table_adds_up_to_what_the_peak_gained() -> None:
    a, b = made(), made(width=256)
    found = diff(a, b)
    assert found.gained == b.report.peak.allocated - a.report.peak.allocated > 0
    for table in TABLES:
        assert sum(by_name(found, table).values()) == found.gained, table
    assert by_name(found, "by_role")["parameter"] == (128 * 64 + 128 + 128 * 10) * 4
    assert not found.partial
    assert {c.line for c in found.by_line} == {f"/here/model.py:{n} in train" for n in (4, 6)}
    back = diff(b, a)
    for table in TABLES:
        assert by_name(back, table) == {name: -n for name, n in by_name(found, table).items()}


def test_lines_that_moved_within_their_function_are_no_change() -> None:
    found = diff(made(), made(above=7, file="/elsewhere/model.py"))
    assert found.gained == 0
    assert [getattr(found, table) for table in TABLES] == [()] * 4
    assert diff(made(), made(file="/here/other.py")).by_line, "another file is another place"


def test_another_op_takes_the_place_of_one() -> None:
    found = diff(made(), made(act="GELU"))
    ops = by_name(found, "by_op")
    assert ops["relu_grad"] < 0 < ops["gelu_grad"]
    text = str(found)
    assert "By op:" in text and "model.py:6 in train" in text and f"{found.gained:+,} bytes" in text


def test_a_report_alone_is_compared_by_its_largest_tensors() -> None:
    a, b = made(), made(width=256)
    found = diff(Recording(a.report, ()), b)
    assert found.partial and "of the largest tensors" in str(found)
    assert by_name(found, "by_layer") == by_name(diff(a, b), "by_layer")
    assert {(c.name, c.gained) for c in found.by_line} & {(c.name, c.gained) for c in diff(a, b).by_line}


@pytest.fixture
def files(tmp_path):
    paths = []
    for name, batch in (("a", 32), ("b", 64)):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(made(batch=batch).to_dict()))
    return paths


def run(capsys, *argv):
    status = main(["diff", *map(str, argv)])
    return status, *capsys.readouterr()


@pytest.mark.parametrize(("swapped", "allowed", "status"), [
    (False, None, 0), (False, "0%", 3), (False, "1 B", 3), (False, "400%", 0), (False, "1GiB", 0), (True, "0%", 0)])
def test_the_command_fails_above_what_is_allowed(capsys, files, swapped, allowed, status):
    a, b = reversed(files) if swapped else files
    found, out, err = run(capsys, a, b, *(("--fail-above", allowed) if allowed else ()))
    assert (found, err) == (status, "")
    assert ("more than" in out) == (status == 3)
    found, out, _ = run(capsys, a, b, "--json", *(("--fail-above", allowed) if allowed else ()))
    data = json.loads(out)
    assert found == status
    assert data["gained"] == data["after"]["allocated"] - data["before"]["allocated"] == sum(
        c["gained"] for c in data["by_line"])


def test_runs_are_compared_at_their_peaks(capsys, tmp_path):
    for batch in (16, 32):
        assert main(["train", "--steps", "2", "--quiet", "--batch-size", str(batch), "--out", str(tmp_path / str(batch))]) == 0
    capsys.readouterr()
    status, out, _ = run(capsys, tmp_path / "16", tmp_path / "32", "--json")
    data = json.loads(out)
    assert status == 0
    for side, batch in (("before", 16), ("after", 32)):
        path, = (tmp_path / str(batch)).glob("*.jsonl")
        assert data[side]["allocated"] == load_run(path).find("peak")[1].report.peak.allocated
        assert data[side]["batch_size"] == batch


@pytest.mark.parametrize(("allowed", "words"), [("1 percent", "'1 percent'"), ("-1%", "'-1%'")])
def test_a_limit_that_is_none_is_one_line(capsys, files, allowed, words):
    status, _, err = run(capsys, *files, f"--fail-above={allowed}")
    assert status == 1 and words in err and err.count("\n") == 1
    status, _, err = run(capsys, files[0], "nowhere.json")
    assert status == 1 and "nowhere.json" in err

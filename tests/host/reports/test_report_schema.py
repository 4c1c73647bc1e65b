"""docs/report-schema.md names what reports, logs, run files and the commands write: no field more, none less."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.cli.main import main
from gradcore.events import ROLES
from gradcore.report.packed import KINDS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "report-schema.md").read_text()
REPORT, *REST = re.split(r"^## ", PAGE, flags=re.MULTILINE)
SECTIONS = {part.splitlines()[0]: part for part in REST}


def rows(text: str) -> list[list[str]]:
    """The cells of a section's tables, without their heads."""
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in cells if row[0].startswith("`") or row[0].startswith(("the ", "a "))]


def named(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def keys(value: Any) -> set[str]:
    """Names of fields in a value and below it, without those of objects that go by names of the user's."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    return set(value).union(*map(keys, value.values())) if isinstance(value, dict) else set()


@pytest.fixture
def step() -> Any:
    """A step whose report has something in every field that a CPU can fill: arrays of others, growth, pinned memory."""
    held: list[Any] = []
    layer = nn.Linear(4, 4)
    total = gradcore.zeros(4)
    for _ in range(6):
        with gradcore.step(batch_size=2) as step:
            out = layer(gradcore.ones(2, 4))
            total = (total + out.sum(0)).tanh()
            held += [out, out.detach().numpy(), gradcore.zeros(3).pin_memory()]
            out.sum().backward()
    # Made while there is something that links the steps.
    assert step.report.growth
    return step


def test_the_fields_of_a_report(step: Any) -> None:
    report = json.loads(step.report.to_json())
    table = {name: row[1] for row in rows(REPORT) for name in named(row[0])}
    assert set(report) == set(table)
    growth = {name: row[1] for row in rows(SECTIONS["Growth"]) for name in named(row[0])}
    assert set(report["growth"]) == set(growth)
    for name in ("grown", "carried"):
        assert report["growth"][name] and keys(report["growth"][name]) <= named(growth[name])
    for name in ("peak", "top", "phases", "kept", "pool", "pinned", "exported", "left"):
        assert report[name], name
        found = keys(report[name])
        assert found <= named(table[name]), name
    assert report["peak"]["op"]
    assert set(report["peak"]) == named(table["peak"])
    assert sorted(ROLES) == sorted(role for row in rows(SECTIONS["Roles"]) for role in named(row[0]))


def test_the_fields_of_a_log(step: Any) -> None:
    recording = json.loads(json.dumps(step.recording.to_dict()))
    section = SECTIONS["A recording"]
    assert set(recording) <= named(section)
    tables, letters = [r for r in rows(section) if len(r) == 2], [r for r in rows(section) if len(r) == 3]
    assert {n for r in tables for n in named(r[0])} == set(recording["log"])
    listed = {letter: row[2] for row in letters for letter in named(row[0])}
    assert set(listed) == set(KINDS)
    for letter, kind in KINDS.items():
        assert named(listed[letter]) == set(kind._fields), letter


def test_the_fields_that_commands_print(capsys: Any, tmp_path: Path) -> None:
    said = {name: named(row[1]) for row in rows(SECTIONS["What the commands print with `--json`"]) for name in named(row[0])}
    lines = SECTIONS["A run"]

    def printed(*argv: str) -> Any:
        assert main([*argv, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found.pop("version") == 1
        return found

    trained = printed("train", "--steps", "2", "--device", "cpu", "--out", str(tmp_path))
    first, *_, last = map(json.loads, Path(trained["file"]).read_text().splitlines())
    assert set(first["columns"]) == set(trained["steps"][0]) <= named(lines)
    assert set(first["about"]) <= said["train"] and set(first) | set(first["about"]) | set(last) <= named(lines)
    assert set(trained) - set(last["result"]) | {"seconds"} == said["train"] - {"about", "columns"}
    measured = printed("measure", "mlp", "--batch-sizes", "1,2,3", "--device", "meta")
    for row in measured["rows"]:
        assert set(row.pop("by_role")) == set(ROLES)
    assert keys(measured) | {"by_role"} == said["measure"]
    assert keys(printed("find-batch", "mlp", "--memory", "8MiB", "--device", "meta")) == said["find-batch"]
    found = keys(printed("find-checkpoints", "mlp", "--memory", "8MiB"))
    assert found == said["find-checkpoints"] - {"named_modules()"}
    reported = printed("report", trained["file"])
    assert set(reported) == said["report"]
    smaller = printed("train", "--steps", "2", "--device", "cpu", "--out", str(tmp_path), "--batch-size", "8")
    compared = printed("diff", trained["file"], smaller["file"])
    assert keys(compared) == said["diff"]

"""What ``gradcore measure`` prints, in tables that fit terminals, and go on below where they do not; and what it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gradcore.units import format_bytes
from tests.host.commands.test_cli import run

ARGUMENTS = ("measure", "cnn", "--optimizer", "adam", "--batch-sizes", "64,128,1000000", "--device", "meta")


def tables(text: str) -> list[dict[str, list[str]]]:
    """The cells of each block of the tables, by column."""
    found, lines = [], text.splitlines()
    for at, line in enumerate(lines):
        if at and re.fullmatch(r" ?[─-]+ *", line):
            names = [name.replace("state", "optimizer state") for name in re.split(r" {2,}", lines[at - 1].strip())]
            cells = [row.split() for row in lines[at + 1:at + 4]]
            found.append({name: [row[k] for row in cells] for k, name in enumerate(names)})
    return found


@pytest.mark.parametrize(("width", "blocks"), [(40, 8), (80, 3), (100, 3), (120, 2), (250, 2)])
def test_the_tables_fit_the_terminal_and_have_every_figure(
        capsys: Any, monkeypatch: pytest.MonkeyPatch, width: int, blocks: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    status, out, _ = run(capsys, *ARGUMENTS)
    rows = json.loads(run(capsys, *ARGUMENTS, "--json")[1])["rows"]
    shown = tables(out)
    assert status == 0 and len(shown) == blocks
    assert all(len(line) <= width for line in out.splitlines() if not line.startswith(("batch", "Peak", "allocated")))
    assert all(block["batch"] == ["64", "128", "1,000,000"] for block in shown)
    cells: dict[str, list[str]] = {}
    for block in shown:
        assert not cells.keys() & block.keys() - {"batch"}
        cells |= block
    for name in ("requested", "allocated", "reserved"):
        assert cells[name] == [f"{row[name]:,}" for row in rows]
    assert cells["per sample"] == [f"{row['bytes_per_sample']:,.0f}" for row in rows]
    # A role without bytes has no column.
    assert {role: [f"{row['by_role'][role]:,}" for row in rows] for role in rows[0]["by_role"]
            if any(row["by_role"][role] for row in rows)} == {
                name: row for name, row in cells.items() if name in rows[0]["by_role"]}
    assert "communication" not in out
    # Beside the exact figures, peaks that can be read at a glance, with their bars.
    sizes = [format_bytes(row["allocated"]) for row in rows]
    bars = re.findall(r"^ *([\d,]+)  +([\d.]+ [KMGT]iB)  [█▏▎▍▌▋▊▉#]*$", out, re.M)
    assert bars == list(zip(cells["batch"], sizes, strict=True))


def test_a_terminal_too_narrow_for_two_columns_loses_no_figure(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    out = run(capsys, *ARGUMENTS)[1]
    assert "…" not in out and all(len(block) == 2 for block in tables(out)) and len(tables(out)) == 13


def test_the_step_with_the_highest_peak_is_written_for_report_and_diff(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "the step.json"
    arguments = ("measure", "mlp", "--batch-sizes", "256,64", "--device", "meta", "-o", str(file))
    status, out, error = run(capsys, *arguments)
    assert status == 0, error
    assert out.endswith(f"The step of batch 256 was written to {file}; gradcore report '{file}' shows it\n")
    rows = json.loads(run(capsys, *arguments, "--json")[1])["rows"]
    peak = json.loads(run(capsys, "report", str(file), "--json")[1])["report"]["peak"]
    assert peak["allocated"] == rows[0]["allocated"] > rows[1]["allocated"]
    assert run(capsys, "diff", str(file), str(file), "--fail-above", "0 B")[0] == 0


def test_a_file_that_would_be_lost_is_refused_before_anything_is_measured(capsys: Any, tmp_path: Path) -> None:
    model = tmp_path / "my:net.py"
    model.write_text("raise SystemError('it was loaded')")
    for output, why in (str(model), "read by this command"), ("-", "choose a file for --output"), (str(tmp_path), "a folder"):
        for name in (f"{model}:build", str(model)):
            status, _, error = run(capsys, "measure", name, "-o", output)
            assert status == 1 and why in error and error.count("\n") == 1
    assert "it was loaded" in model.read_text()


def test_the_data_are_not_overwritten_by_what_is_measured_of_them(capsys: Any, tmp_path: Path) -> None:
    text, images = tmp_path / "text.txt", tmp_path / "images" / "train-images-idx3-ubyte.gz"
    text.write_text("to be, or not to be " * 50)
    images.parent.mkdir()
    images.write_bytes(b"images")
    for data, output in (text, text), (images.parent, images):
        status, _, error = run(capsys, "measure", "chargpt", "--data", str(data), "-o", str(output), "--device", "meta")
        assert status == 1 and f"{output} is read by this command" in error
    assert "not to be" in text.read_text() and images.read_bytes() == b"images"

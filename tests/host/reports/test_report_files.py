"""Files that reports and exports write: whole or not at all, where a link leads, into pipes, never in the place of a folder."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore.cli.main import main
from gradcore.report import load_run
from gradcore.report.files import replacing
from gradcore.report.run import RunWriter, StepFigures
from tests.conftest import raises
from tests.meta.test_recording import recorded

posix = pytest.mark.skipif(os.name != "posix", reason="symbolic links and pipes as POSIX has them")


@pytest.fixture(scope="module")
def ended() -> gradcore.step:
    return recorded()


def put(path: Path, text: bytes = b"new") -> None:
    with replacing(path) as file:
        file.write(text)


@posix
def test_a_file_has_the_mode_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        put(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o640
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]


def test_what_fails_leaves_the_file_of_before(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"new")
        raise ZeroDivisionError
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_error_has_the_name_that_the_file_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: Path, path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(name), None, str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.replace", refused)
    with pytest.raises(PermissionError) as told:
        put(Path("a"))
    assert str(told.value) == "[Errno 13] Permission denied: 'a'" and not [*tmp_path.iterdir()]


@posix
@pytest.mark.parametrize("name", ["a", "/dev/full"])
def test_a_full_disk_has_the_name_of_the_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if name.startswith("/") and not Path(name).exists():
        pytest.skip(f"{name} is Linux's")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError) as told:
        put(Path(name))
    assert str(told.value) == f"[Errno 28] No space left on device: '{name}'" and not [*tmp_path.iterdir()]


def test_an_export_that_fails_leaves_the_file_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed: pip install -e '.[onnx]'")
    path = tmp_path / "a"
    path.write_text("old")
    monkeypatch.setattr("os.fsync", lambda file: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gradcore.onnx.export(gradcore.nn.Linear(2, 2), gradcore.ones(1, 2), path)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a"]


@posix
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)
    for text in (b"first", b"second"):
        put(link, text)
        assert link.is_symlink() and target.read_bytes() == text


@posix
def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    put(pipe)
    reader.join(30)
    assert found == [b"new"] and stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("path", ["", ".", "folder"])
def test_a_folder_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="expected the path of a file, but this is a folder"):
        put(Path(path))
    assert [p.name for p in tmp_path.rglob("*")] == ["folder"]


@posix
def test_the_command_writes_to_standard_output(tmp_path: Path, ended: gradcore.step) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(ended.recording.to_dict()))
    done = subprocess.run([sys.executable, "-m", "gradcore", "export", str(path), "--format", "csv", "-o", "/dev/stdout"],
                          capture_output=True, text=True, cwd=Path(gradcore.__file__).parents[1], check=True)
    assert len(done.stdout.splitlines()) > 5 and Path("/dev/stdout").is_symlink()


@posix
def test_a_pipe_is_not_read_twice(tmp_path: Path, capsys: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert main(["report", str(tmp_path / "pipe")]) == 1
    assert "is a pipe or a device, which cannot be read twice: write it to a file first" in capsys.readouterr().err


def test_a_run_that_diverges_has_its_file(tmp_path: Path, ended: gradcore.step) -> None:
    with RunWriter(tmp_path / "run.jsonl", {}) as file:
        for k, loss in enumerate((1.0, float("nan"), float("inf")), 1):
            file.add(StepFigures.of(k, loss, ended.report), ended)
    assert [s.loss for s in load_run(tmp_path / "run.jsonl").steps] == [1.0, None, None]


def test_a_run_that_is_cut_before_its_first_events(tmp_path: Path, ended: gradcore.step, capsys: Any) -> None:
    with RunWriter(tmp_path / "run.jsonl", {}) as file:
        file.add(StepFigures.of(1, 1.0, ended.report), ended)
    lines = (tmp_path / "run.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_bytes(b"".join(lines[:2]))
    assert main(["report", str(tmp_path / "cut.jsonl")]) == 1
    assert "it ends before those of the first, after the figures of 1 step" in capsys.readouterr().err


def test_who_may_read_a_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with replacing(tmp_path / "link") as file:
        assert [stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir() if not p.is_symlink()] == [0o600, 0o600]
        file.write(b"new")
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == 0o600


@posix
@pytest.mark.parametrize("words", [
    "report run.jsonl --html run.jsonl", "report other.jsonl --beside run.jsonl --html run.jsonl", "report . --html run.jsonl",
    "report other.jsonl --html run.jsonl", "report report.json --html report.json", "report run.jsonl --html step.json",
    "export run.jsonl --format csv -o run.jsonl", "export . --format json -o run.jsonl",
    "export step.json --format json -o step.json",
    "export run.jsonl --format csv -o step.json", "export run.jsonl --format trace -o link",
    "diff run.jsonl other.jsonl --html run.jsonl", "diff run.jsonl other.jsonl --html other.jsonl",
    "diff report.json report.json --html report.json", "diff other.jsonl other.jsonl --html run.jsonl"])
def test_no_command_overwrites_what_it_reads_or_a_run(words: str, ended: gradcore.step, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("other.jsonl", "run.jsonl"):
        with RunWriter(name, {}) as file:
            file.add(StepFigures.of(1, None, ended.report), ended)
    Path("step.json").write_text(json.dumps(ended.recording.to_dict(), indent=2))
    Path("report.json").write_text(ended.report.to_json())
    Path("link").symlink_to("run.jsonl")
    before = {path: path.read_bytes() for path in Path().iterdir()}
    assert main(words.split()) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gradcore: {words.split()[-1]} is ") and "choose another file to write" in line
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_a_page_and_an_export_may_be_written_again(ended: gradcore.step, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RunWriter("run.jsonl", {}) as file:
        file.add(StepFigures.of(1, None, ended.report), ended)
    for _ in range(2):
        assert main(["report", "run.jsonl", "--html", "a.html"]) == 0
        assert main(["diff", "run.jsonl", "run.jsonl", "--html", "a.html"]) == 0
        assert main(["export", "run.jsonl", "--format", "json", "-o", "a.json"]) == 0
        assert main(["export", "run.jsonl", "--format", "csv", "-o", "a.csv"]) == 0


def test_a_run_of_ones_own_ends_where_its_block_ends(tmp_path: Path, ended: gradcore.step, capsys: Any) -> None:
    def told(name: str, result: dict[str, Any] | None = None, error: bool = False) -> str:
        try:
            with RunWriter(tmp_path / name, {"model": "mine", "lr": 0.05, "why": "two\nlines", "sizes": [1]}) as file:
                file.add(StepFigures.of(1, 1.0, ended.report), ended)
                if error:
                    raise KeyError
                if result is not None:
                    file.close(result)
        except KeyError:
            pass
        assert main(["report", str(tmp_path / name)]) == 0
        about, figures, *_ = capsys.readouterr().out.splitlines()
        assert about == f"{tmp_path / name}: model mine, lr 0.05, why two lines"
        return figures.partition(";")[0]

    assert told("plain.jsonl") == "1 step, ended"
    assert told("failed.jsonl", error=True) == "1 step, not finished"
    figures = {"accuracy": 0.974321, "epochs": 3, "kept": [1]}
    assert told("figures.jsonl", figures) == "1 step, ended with accuracy 0.9743, epochs 3"
    sample = {"sample": "The \nfirst   line\n\n" + "and another " * 20, "seconds": 2.0}
    began = "The first line" + " and another" * 8 + " and an"
    assert told("sample.jsonl", sample) == f"1 step, ended with sample {began}..., seconds 2"
    with raises(FileExistsError, "a run is written to a new file: choose another name", "plain.jsonl"):
        RunWriter(tmp_path / "plain.jsonl", {})

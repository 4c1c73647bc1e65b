"""The file of recorded peaks: when it is written, and what is read from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gradcore
from gradcore.report.diff import Owners
from gradcore.testing import baseline
from gradcore.testing.account import Account, held
from tests.conftest import raises
from tests.host.commands.test_pytest_plugin import HEAD, lines, run  # noqa: F401 - the fixture

pytest_plugins = ["pytester"]

#: A marked test, and another.
TESTS = HEAD + """
@pytest.mark.limit_device_memory("8 kB")
def test_a():
    gradcore.ones(1000)

def test_unmarked():
    gradcore.ones(1000)
"""


@pytest.mark.parametrize("argv", [["--collect-only"], ["-k", "unmarked"]])
def test_it_is_not_written_if_no_marked_test_has_run(run: Any, pytester: pytest.Pytester, argv: list[str]) -> None:  # noqa: F811
    path = pytester.path / "peaks.json"
    update = ("--gradcore-memory-baseline", "peaks.json", "--gradcore-memory-update")
    lines(run(TESTS, *update, *argv), "no peak was measured, so peaks.json was not written")
    assert not path.exists()
    lines(run(None, *update), "1 peak written to peaks.json: 1 new, 0 changed")
    (pytester.path / "there").mkdir()
    lines(run(None, "--gradcore-memory-baseline", "there/../peaks.json"), "1 peak compared with peaks.json")
    before = path.read_bytes().replace(b"\n", b"")
    path.write_bytes(before)
    lines(run(None, *update, *argv), "no peak was measured, so peaks.json was not written")
    assert path.read_bytes() == before


def test_a_test_of_another_device_keeps_its_peak(run: Any, pytester: pytest.Pytester) -> None:  # noqa: F811
    source = TESTS + """
@pytest.mark.limit_device_memory("8 kB")
def test_b(gradcore_device):
    gradcore.ones(1000, device=gradcore_device)
"""
    update = ("--gradcore-memory-baseline", "peaks.json", "--gradcore-memory-update")
    lines(run(source, *update), "2 peaks written to peaks.json: 2 new, 0 changed")
    before = (pytester.path / "peaks.json").read_bytes()
    result = run(None, *update, "--gradcore-device", "meta", "-W", "default")
    result.assert_outcomes(passed=3, warnings=1)
    lines(result, "*test_a is accounted on meta, and allocated nothing there, but on cpu*")
    assert (pytester.path / "peaks.json").read_bytes() == before


@pytest.mark.parametrize(("text", "why"), [
    ("", "no JSON (Expecting value: line 1 column 1 (char 0))"), ("[]", "expected a file of version 1"),
    ('{"version": 2, "tests": {}}', "expected a file of version 1"),
    ('{"version": 1}', "expected an object of tests"), ('{"version": 1, "tests": []}', "expected an object of tests"),
    ('{"version": 1, "tests": {"a": 3}}', "a peak should be an object, but is 3"),
    ('{"version": 1, "tests": {"a": {"peak": 1.5, "by": {}}}}', "a peak.peak should be int, but is 1.5"),
    ('{"version": 1, "tests": {"a": {"peak": 1, "by": {"color": {"red": 1}}}}}', "bytes are grouped by ")])
def test_what_is_no_baseline(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with raises(ValueError, f"x.json is not a baseline of device memory: {why}"):
        baseline.read(tmp_path / "x.json")


def test_a_baseline_that_an_editor_has_saved(tmp_path: Path) -> None:
    path, tests = tmp_path / "x.json", {"a": Owners(512, {"op": {"full": 512}})}
    baseline.write(path, tests)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert baseline.read(path) == tests


def peak(nbytes: int) -> Owners:
    return Owners(nbytes, {"op": {"full": nbytes}})


def test_runs_that_write_one_baseline_at_once_lose_nothing(tmp_path: Path) -> None:
    path, count = tmp_path / "new" / "x.json", 30
    code = ("import sys\nfrom pathlib import Path\n"
            "from gradcore.report.diff import Owners\nfrom gradcore.testing import baseline\n"
            "for k in range(int(sys.argv[3])):\n"
            "    baseline.merge(Path(sys.argv[1]), {f'{sys.argv[2]}-{k}': Owners(512, {'op': {'full': 512}})})\n")
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), name, str(count)]) for name in "abc"]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    assert baseline.read(path) == {f"{name}-{k}": peak(512) for name in "abc" for k in range(count)}
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_what_another_run_has_written_meanwhile_stays(run: Any, pytester: pytest.Pytester) -> None:  # noqa: F811
    tests = HEAD + """
from pathlib import Path
from gradcore.report.diff import Owners
from gradcore.testing import baseline

@pytest.mark.limit_device_memory("8 kB")
def test_a():
    gradcore.ones(1000)

def test_another_run():
    baseline.merge(Path("peaks.json"), {"test_other.py::test_b": Owners(512, {"op": {"full": 512}})})
"""
    lines(run(tests, "--gradcore-memory-baseline", "peaks.json", "--gradcore-memory-update"), "1 peak written to peaks.json: *")
    assert sorted(baseline.read(pytester.path / "peaks.json")) == ["test_it.py::test_a", "test_other.py::test_b"]


def test_a_lock_that_was_left_behind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "WAIT", 0.05)
    path, lock = tmp_path / "x.json", tmp_path / ".x.json.lock"
    baseline.merge(path, {"a": peak(512)})
    lock.touch()
    with raises(TimeoutError, ".x.json.lock is there for more than 0.05 s", "remove it if none does"):
        baseline.merge(path, {"b": peak(512)})
    assert baseline.read(path) == {"a": peak(512)} and lock.exists()
    lock.unlink()
    path.write_text("")
    with raises(ValueError, "x.json is not a baseline of device memory"):
        baseline.merge(path, {"b": peak(512)})
    assert not lock.exists()
    # A folder that cannot be written; a superuser may write all but some of the system's.
    if Path("/proc/self").exists():
        with raises(OSError, "'/proc/x.json'"):
            baseline.merge(Path("/proc/x.json"), {"b": peak(512)})


def test_a_baseline_of_another_root_is_an_error(run: Any, pytester: pytest.Pytester) -> None:  # noqa: F811
    tests = HEAD + """
@pytest.mark.limit_device_memory("8 kB")
def test_a():
    gradcore.ones(1000)
"""
    run(tests, "--gradcore-memory-baseline", "peaks.json", "--gradcore-memory-update")
    inner = pytester.mkdir("inner")
    result = run(None, "--gradcore-memory-baseline", "peaks.json", "--rootdir", str(inner))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*none of the tests of the baseline *peaks.json is in *inner, where pytest looks for *"])
    lines(run(None, "--gradcore-memory-baseline", "peaks.json"), "1 peak compared with peaks.json")


def test_a_baseline_of_the_root_is_found_from_a_folder_below(
        run: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    pytester.makeini("[pytest]\naddopts = --gradcore-memory-baseline peaks.json")
    lines(run(TESTS, "--gradcore-memory-update"), "1 peak written to peaks.json: 1 new, 0 changed")
    monkeypatch.chdir(pytester.mkdir("below"))
    lines(run(None, ".."), "1 peak compared with peaks.json")
    lines(run(None, "..", "--gradcore-memory-update"), "1 peak written to peaks.json: 0 new, 0 changed")
    assert not list((pytester.path / "below").iterdir())


@pytest.mark.parametrize(("written", "compared", "root", "workers"), [
    ("part", ".", "was part", ()), (".", "part", "has part in it", ("-p", "xdist", "-n", "1"))])
def test_a_baseline_with_other_names_for_the_tests_is_an_error(
        run: Any, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, written: str, compared: str, root: str,  # noqa: F811
        workers: tuple[str, ...]) -> None:
    text = HEAD + """
@pytest.mark.limit_device_memory("8 kB")
def test_a():
    gradcore.ones(1000)

@pytest.mark.limit_device_memory("8 kB")
def test_c():
    gradcore.ones(1000)
"""
    if workers:
        pytest.importorskip("xdist", reason="pytest-xdist is not installed: pip install -e '.[test]'")
    pytester.mkdir("part")
    for folder in (".", "part"):
        # The names alone do not show that the baseline is another root's: the same are in this one.
        for name in ("test_b.py", "part/test_b.py"):
            path = pytester.path / folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text if path.parent.name == "part" else "")
    path, tests = str(pytester.path / "m.json"), str(pytester.path / "part" / "test_b.py")
    baselined = ("--gradcore-memory-baseline", path)
    lines(run(None, tests, "--rootdir", written, *baselined, "--gradcore-memory-update"), "2 peaks written to *m.json: 2 new*")
    result = run(None, tests, "-k", "test_c", "--rootdir", compared, *baselined, *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stdout.str() + result.stderr.str()
    assert "none of the tests that ran is in the baseline" in said and f"whose --rootdir {root}: choose that --rootdir" in said
    # A test that is new is none of these.
    path = pytester.path / "m.json"
    path.write_text(path.read_text().replace("::test_c", "::test_d"))
    result = run(None, tests, "-k", "test_c", "--rootdir", compared, *baselined)
    assert result.ret == pytest.ExitCode.OK
    lines(result, "0 peaks compared with *", "not in it, *::test_c")


def test_what_was_live_before_and_is_still_is_no_owner() -> None:
    """A module's parameters get their layers once it is called: they are not taken from one layer and added to another."""
    model = gradcore.nn.Sequential(gradcore.nn.Linear(64, 64), gradcore.nn.ReLU())
    x, freed = gradcore.ones(100, 64), [gradcore.ones(1000)]
    account = Account("cpu")
    try:
        start = account.now()
        freed.clear()
        y = model(x)
        owners = account.since(start).owners("")
    finally:
        account.close()
    assert owners.by["layer"] == {"0": y.nbytes, "1": y.nbytes, "": -4096} and owners.peak == 2 * y.nbytes - 4096
    assert owners.by["role"] == {"output": owners.peak}


def test_equal_layers_of_a_large_network_share_a_line() -> None:
    blocks = [gradcore.nn.Sequential(gradcore.nn.Linear(32, 32), gradcore.nn.Tanh()) for _ in range(12)]
    model = gradcore.nn.ModuleDict({"blocks": gradcore.nn.Sequential(*blocks)})
    x = gradcore.ones(100, 32)
    account = Account("cpu")
    try:
        start = account.now()
        y = model["blocks"](x)
        stretch = account.since(start)
    finally:
        account.close()
    lines = held(stretch.made_at_end(), stretch.left, "", lambda serials: dict.fromkeys(serials, "a graph"))
    assert [line.split(", ")[0].split() for line in lines[::2]] == [
        [f"{12 * y.nbytes:,}", "bytes", "residual", "of", "tanh", "in", "blocks.0-11.1"]]
    assert lines[1].split() == ["held", "by", "a", "graph"] and len(lines) == 2


def test_a_test_that_is_not_in_the_baseline_fails_if_it_is_strict(run: Any, pytester: pytest.Pytester) -> None:  # noqa: F811
    options = ("--gradcore-memory-baseline", "peaks.json")
    run(TESTS, *options, "--gradcore-memory-update", "--gradcore-memory-strict").assert_outcomes(passed=2)
    run(None, *options, "--gradcore-memory-strict").assert_outcomes(passed=2)
    renamed = TESTS.replace("test_a", "test_b")
    run(renamed, *options).assert_outcomes(passed=2)
    strict = run(None, *options, "--gradcore-memory-strict")
    strict.assert_outcomes(passed=1, failed=1)
    lines(strict, "device memory on cpu: the test is not in peaks.json, so its peak of 4,096 bytes is compared with nothing: "
                  "--gradcore-memory-update records it")
    # A peak above its limit, which would not be recorded, is not said to be.
    above = run(renamed.replace("8 kB", "1 kB"), *options, "--gradcore-memory-strict")
    above.assert_outcomes(passed=1, failed=1)
    assert "more than '1 kB'" in above.stdout.str() and "--gradcore-memory-update" not in above.stdout.str()
    run(None, "--gradcore-memory-strict").stderr.fnmatch_lines([
        "ERROR: --gradcore-memory-strict looks for each test in the file of --gradcore-memory-baseline: name one"])

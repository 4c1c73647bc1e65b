"""The pytest plugin, run by pytest in a separate process: limits, leaks, the fixture, the baseline, pytest-xdist."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gradcore.report.diff import Owners
from gradcore.testing import baseline

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[3]
ENTRY = ROOT / "gradcore" / "testing" / "entry"
HEAD = "import pytest\nimport gradcore\n\nCPU = gradcore.device('cpu')\n"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", f"{ENTRY}{os.pathsep}{ROOT}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    # Other installed plugins are not loaded: some take seconds to import, in each process.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(source: str | None, *argv: str) -> pytest.RunResult:
        if source is not None:
            pytester.makepyfile(test_it=source)
            # pytest takes a source of the same length, written within the same second, for the one that it has compiled.
            shutil.rmtree(pytester.path / "__pycache__", ignore_errors=True)
        return pytester.runpytest_subprocess("-p", "pytest_gradcore", "-p", "no:cacheprovider", "--strict-markers",
                                             "-W", "error", *argv)
    return run


def lines(result: pytest.RunResult, *wanted: str) -> None:
    result.stdout.fnmatch_lines(list(wanted))


def test_it_is_installed_under_its_modules_name() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert told["project"]["entry-points"]["pytest11"] == {"pytest_gradcore": "pytest_gradcore"}
    wheel = told["tool"]["hatch"]["build"]["targets"]["wheel"]
    # What is forced in, an editable install copies: it would not follow a change of the module.
    assert wheel["sources"] == {ENTRY.relative_to(ROOT).as_posix(): ""} and set(wheel["force-include"]) == {"kernels"}
    assert not any(d.startswith("pytest") for d in told["project"]["dependencies"])


def test_it_is_silent_until_it_is_used(run: Any) -> None:
    result = run("""
        import sys

        def test_nothing_is_imported():
            heavy = {"numpy", "gradcore"} & set(sys.modules)
            assert not heavy and "pytest_gradcore" in sys.modules
    """)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*device memory*")
    assert "limit_device_leaks(size)" in run(None, "--markers").stdout.str()


def test_a_broken_limit_says_who_holds_the_memory(run: Any) -> None:
    result = run(HEAD + """
held = gradcore.ones(1_000_000)

@pytest.mark.limit_device_memory("8_192 B")
def test_within():
    x = gradcore.ones(1024)
    y = x + x

@pytest.mark.limit_device_memory("8 kB")
def test_over():
    x = gradcore.ones(1024)
    y = x + x

@pytest.mark.limit_device_memory("0 B")
def test_nothing():
    pass

@pytest.mark.limit_device_memory("4 KiB")
class TestMany:
    def test_a_step_of_its_own(self):
        with gradcore.step() as step:
            x = gradcore.ones(1024, requires_grad=True)
            y = x.exp().sum()
        assert step.report.by_op["exp"] == 4096 and [r.what for r in step.log if hasattr(r, "what")] == ["begin", "end"]

    def test_steps_in_turn(self):
        for _ in range(3):
            with gradcore.step(device="cpu"):
                gradcore.ones(1000)

    @pytest.mark.limit_device_memory("12 kB")
    def test_the_closest_counts(self):
        x = gradcore.ones(1024, requires_grad=True)
        with gradcore.step():
            y = x.exp()

    def test_the_counters_may_be_reset(self):
        x = gradcore.ones(2048)
        del x
        gradcore.reset_peak_memory_stats()
""")
    result.assert_outcomes(passed=4, failed=3)
    lines(result,
          "device memory on cpu: the peak is 8,192 bytes above what was live before the test, 192 more than '8 kB'",
          "  reached by add in layer (root), test_it.py:16 in test_over",
          "held there by what the test made:",
          "            4,096 bytes  output of add in (root), test_it.py:16 in test_over",
          "            4,096 bytes  output of full in (root), test_it.py:15 in test_over",
          "device memory on cpu: the peak is 8,704 bytes above what was live before the test, 4,608 more than '4 KiB'",
          "            4,096 bytes  residual of exp in (root), test_it.py:*TestMany.test_a_step_of_its_own, kept by the graph",
          "device memory on cpu: the peak is 8,192 bytes above *, 4,096 more than '4 KiB'",
          "*8,192 bytes  output of full in (root), test_it.py:*TestMany.test_the_counters_may_be_reset")
    result.stdout.no_fnmatch_line("*4,000,256 bytes*")


def test_leaks(run: Any) -> None:
    result = run(HEAD + """
import gc
gc.disable()
kept = []

@pytest.mark.limit_device_leaks("0 B")
def test_none():
    x = gradcore.ones(1000, requires_grad=True)
    (x * x).sum().backward()

@pytest.mark.limit_device_leaks("0 B")
def test_some():
    kept.append(gradcore.ones(1000))

@pytest.mark.limit_device_leaks("4 KiB")
def test_as_much_as_it_may():
    kept.append(gradcore.ones(1000))

@pytest.mark.limit_device_leaks("0 B")
def test_a_cycle():
    x = [gradcore.ones(1000)]
    x.append(x)

@pytest.mark.limit_device_leaks("0 B")
@pytest.mark.limit_device_memory("512 B")
def test_one_for_another():
    kept.clear()
    kept.append(gradcore.ones(5000))

@pytest.mark.limit_device_leaks("0 B")
def test_what_raises_is_left_as_it_is():
    x = gradcore.ones(1000)
    assert x is None

@pytest.mark.xfail(strict=True)
@pytest.mark.limit_device_leaks("0 B")
def test_expected():
    kept.append(gradcore.ones(1000))
""")
    result.assert_outcomes(passed=2, failed=4, xfailed=1)
    lines(result,
          "device memory on cpu: 4,096 bytes more are live after the test than before it, 4,096 more than '0 B'",
          "made by the test and still live:",
          "            4,096 bytes  output of full in (root), test_it.py:* in test_some",
          "The garbage collector has not been run: a reference cycle, *",
          "device memory on cpu: 4,096 bytes more *",
          "*in test_a_cycle",
          "device memory on cpu: the peak is 12,288 bytes above what was live before the test, 11,776 more than '512 B'",
          "device memory on cpu: 12,288 bytes more are live *",
          "           20,480 bytes  output of full in (root), test_it.py:* in test_one_for_another",
          "           -8,192 bytes  that were live before and have been freed",
          "E       assert * is None")


def test_the_fixture(run: Any) -> None:
    result = run(HEAD + """
def test_figures(device_memory, gradcore_device):
    assert device_memory.device is gradcore_device and gradcore_device == "meta"
    x = gradcore.ones(1000, device=gradcore_device)
    del x
    y = gradcore.ones(10, device=gradcore_device)
    assert (device_memory.peak_allocated, device_memory.peak_requested, device_memory.live_allocated) == (4096, 4000, 512)
    assert repr(device_memory) == "<device memory on meta: peak 4,096, live 512 bytes more than at the beginning>"
    device_memory.reset()
    assert (device_memory.peak_allocated, device_memory.live_allocated) == (0, 0)
    with gradcore.step(device=gradcore_device) as step:
        z = y + y
        assert device_memory.peak_allocated == 512
    report = device_memory.report
    assert report.by_op["add"] == 512 and step.report.by_op == report.by_op and report.peak.op == "add"
    assert [p.phase for p in report.phases] == ["step"] and report.pool.allocations == 1
    recording = device_memory.recording
    assert recording.records and recording.report.peak.allocated == step.report.peak.allocated
    del y
    assert device_memory.live_allocated == 0

def test_it_is_reset(device_memory):
    assert device_memory.peak_allocated == 0

@pytest.mark.limit_device_memory("1 KiB")
def test_a_limit_is_of_the_whole_test(device_memory, gradcore_device):
    gradcore.ones(1000, device=gradcore_device)
    device_memory.reset()

@pytest.fixture
def stepping():
    with gradcore.step(device="meta"):
        yield

def test_a_step_opened_after_it(device_memory, stepping, gradcore_device):
    gradcore.ones(1000, device=gradcore_device)
    assert device_memory.peak_allocated == 4096

def test_a_step_opened_before_it(stepping, device_memory, gradcore_device):
    gradcore.ones(1000, device=gradcore_device)
    assert device_memory.peak_allocated == 4096

@pytest.mark.limit_device_memory("1 KiB")
def test_a_step_around_it(stepping, gradcore_device):
    gradcore.ones(500, device=gradcore_device)

def test_afterwards_a_step_is_a_step():
    with gradcore.step(device="meta") as step:
        with pytest.raises(RuntimeError, match="cannot be nested"):
            with gradcore.step(device="meta"):
                pass
    assert gradcore.device("meta").ledger.log is None
""", "--gradcore-device", "meta")
    result.assert_outcomes(passed=5, failed=2)
    lines(result, "device memory on meta: the peak is 4,096 *, 3,072 more than '1 KiB'",
          "device memory on meta: the peak is 2,048 *, 1,024 more than '1 KiB'")


def test_mistakes_are_one_clear_error(run: Any, pytester: pytest.Pytester) -> None:
    result = run("""
        import pytest

        @pytest.mark.limit_device_memory("24 XB")
        def test_unit():
            pass

        @pytest.mark.limit_device_leaks()
        def test_nothing_given():
            pass

        @pytest.mark.limit_device_memory("1 B", device="cpu")
        def test_more_given():
            pass
    """)
    result.assert_outcomes(errors=3)
    lines(result, "limit_device_memory('24 XB'): expected a size such as '64MiB', '1.5 GB' or 4096, but got '24 XB'",
          "limit_device_leaks(): one size such as \"24 MB\" was expected",
          "limit_device_memory('1 B', device='cpu'): one size such as \"24 MB\" was expected")
    result.stdout.no_fnmatch_line("*During handling of the above exception*")
    (pytester.path / "broken.json").write_text('{"version": 1, "tests": {"a": {"peak": 1, "by": {"op": {"add": 2}}}}}')
    for argv, words in ((("--gradcore-memory-update",), "writes the file of --gradcore-memory-baseline: name one"),
                        (("--gradcore-memory-baseline", "none.json"), "there is no baseline *none.json"),
                        (("--gradcore-memory-baseline", "broken.json"), "broken.json is not a baseline of device memory")):
        told = run(None, *argv)
        assert told.ret == pytest.ExitCode.USAGE_ERROR and not told.stdout.str().count("Traceback")
        told.stderr.fnmatch_lines([f"ERROR: *{words}*"])


TESTS = HEAD + """
SIZES = {"test_a": WIDTH, "test_b": 1000}

@pytest.mark.limit_device_memory("1 MB")
def test_a():
    x = gradcore.ones(SIZES["test_a"])
    y = x + x

@pytest.mark.limit_device_leaks("0 B")
@pytest.mark.parametrize("n", [1, 2])
def test_b(n):
    gradcore.ones(n * SIZES["test_b"])

@pytest.mark.limit_device_memory("0 B")
def test_broken():
    gradcore.ones(10)

def test_unmarked():
    gradcore.ones(10)
"""


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_the_baseline(run: Any, pytester: pytest.Pytester, workers: str) -> None:
    if workers != "0" and importlib.util.find_spec("xdist") is None:
        pytest.skip("pytest-xdist is not installed: pip install -e '.[test]'")
    spread = ("-p", "xdist", "-n", workers, "--dist", "loadgroup") if workers != "0" else ()
    tests = TESTS.replace("def test_a", "@pytest.mark.xdist_group('one')\ndef test_a" if spread else "def test_a")
    argv = (*spread, "--gradcore-memory-baseline", "deep/peaks.json")
    path = pytester.path / "deep" / "peaks.json"
    result = run(tests.replace("WIDTH", "1000"), *argv, "--gradcore-memory-update")
    result.assert_outcomes(passed=4, failed=1)
    lines(result, "3 peaks written to deep/peaks.json: 3 new, 0 changed")
    text = path.read_text()
    data = json.loads(text)
    assert text == json.dumps(data, indent=1, sort_keys=True) + "\n" and [p.name for p in path.parent.iterdir()] == [path.name]
    assert {test: entry["peak"] for test, entry in data["tests"].items()} == {
        "test_it.py::test_a": 8192, "test_it.py::test_b[1]": 4096, "test_it.py::test_b[2]": 8192}
    assert data["tests"]["test_it.py::test_a"]["by"]["line"] == {
        f"test_it.py:{line + bool(spread)} in test_a": 4096 for line in (10, 11)}
    # Equal figures pass, also for fewer tests; a larger peak fails and is explained; a smaller one is reported.
    run(None, *argv, "-k", "not broken").assert_outcomes(passed=4)
    del data["tests"]["test_it.py::test_b[1]"]
    data["tests"]["test_it.py::test_b[2]"] = {"peak": 9000, "by": {"op": {"full": 9000}}}
    path.write_text(json.dumps(data))
    result = run(tests.replace("WIDTH", "2000"), *argv, "-k", "not broken")
    result.assert_outcomes(passed=3, failed=1)
    lines(result, "device memory on cpu: the peak is above the one in deep/peaks.json",
          "Peak: 8.00 KiB before, 16.0 KiB after: +8,192 bytes, +100.00%",
          "By line:",
          "*+4,096  test_it.py:1* in test_a  4,096 -> 8,192",
          "If it is meant to be, --gradcore-memory-update records it.",
          "2 peaks compared with deep/peaks.json",
          "not in it, --gradcore-memory-update writes them: test_it.py::test_b[[]1]",
          "lower than recorded, --gradcore-memory-update lowers them: test_it.py::test_b[[]2]")
    # An update keeps the figures of tests that did not run.
    run(None, *argv, "-k", "test_a", "--gradcore-memory-update").assert_outcomes(passed=1)
    told = baseline.read(path)
    assert told["test_it.py::test_a"].peak == 16384 and told["test_it.py::test_b[2]"] == Owners(9000, {"op": {"full": 9000}})


def test_the_examples_of_the_documentation(run: Any, pytester: pytest.Pytester) -> None:
    """A console block is a command, and lines of what it prints, in order; any other block is the file that it names."""
    page = (ROOT / "docs" / "testing.md").read_text()
    blocks = re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)
    assert [kind for kind, _ in blocks].count("console") == 5
    for kind, text in blocks:
        first, _, rest = text.partition("\n")
        if kind != "console":
            (pytester.path / first.removeprefix("# ")).write_text(text)
            continue
        command, *argv = first.removeprefix("$ ").split()
        assert command == "pytest" and rest.strip()
        printed = iter(run(None, *argv).stdout.lines)
        for line in rest.splitlines():
            assert line == "..." or line in printed, line

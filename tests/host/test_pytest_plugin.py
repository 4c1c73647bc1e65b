"""The pytest plugin, in test runs of its own: limits, leaks, a baseline, with and without workers."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parents[2]

HEAD = """
import gradcore
import pytest
from gradcore import nn

def train(width, device="cpu"):
    model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 1)).to(device)
    model(gradcore.ones(64, 256, device=device)).sum().backward()
"""


@pytest.fixture
def run(pytester, monkeypatch):
    # What is installed may be another copy.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "gradcore/testing/entry"))))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(text, *options):
        if text is not None:
            pytester.makepyfile(test_it=HEAD + text)
        result = pytester.runpytest_subprocess("-p", "pytest_gradcore", "--strict-markers", "-W", "error", *options)
        return result, result.stdout.str()

    return run


def test_nothing_of_gradcore_is_imported_where_no_test_uses_it(pytester, run):
    pytester.makepyfile(test_plain="""
        import sys
        def test_it():
            heavy = {"gradcore", "numpy", "rich", "cupy"} & set(sys.modules)
            assert "pytest_gradcore" in sys.modules and not heavy, heavy
    """)
    result, out = run(None)
    result.assert_outcomes(passed=1)
    assert "gradcore:" not in out
    _, out = run(None, "--markers")
    assert "@pytest.mark.limit_device_memory(size" in out and "@pytest.mark.limit_device_leaks(size)" in out


def test_limits(run):
    result, out = run("""
KEPT = []

@pytest.mark.limit_device_memory("2 MiB")
def test_fits(): train(256)

@pytest.mark.limit_device_memory("200 KB")
def test_is_too_large(): train(256)

@pytest.mark.limit_device_memory("600_000 B")
def test_keeps_its_log_around_steps():
    with gradcore.step() as step:
        train(256)
    assert step.report.peak.allocated > 600_000

@pytest.fixture
def model(): return nn.Linear(256, 256)

@pytest.mark.limit_device_memory("1 KiB")
def test_fixtures_are_not_its_own(model): gradcore.ones(256)

@pytest.mark.limit_device_memory("1 KiB", whole=True)
def test_unless_the_whole_is_limited(model): gradcore.ones(256)

@pytest.mark.limit_device_leaks("0 B")
def test_a_gradient_goes_with_its_model(model): model(gradcore.ones(1, 256)).sum().backward()

@pytest.mark.limit_device_leaks("0 B")
def test_leaks(): KEPT.append(gradcore.ones(1000) * 2)

@pytest.mark.limit_device_leaks("4 KiB")
def test_may_leak(): KEPT.append(gradcore.ones(1000) * 2)

@pytest.mark.limit_device_leaks("0 B")
def test_random_numbers_leave_nothing(): gradcore.rand(10, device="meta")

@pytest.mark.limit_device_memory("24 XB")
def test_no_size(): pass

@pytest.mark.limit_device_leaks()
def test_no_size_at_all(): pass

@pytest.mark.limit_device_memory("0 B")
def test_fails_by_itself(): assert gradcore.ones(3).sum().item() == 4

@pytest.mark.xfail(strict=True)
@pytest.mark.limit_device_memory("0 B")
def test_is_known_to_take_some(): gradcore.ones(3)

@pytest.mark.limit_device_memory("0 B")
def test_skips(): pytest.skip("no reason")
""", "-rA")
    result.assert_outcomes(passed=6, failed=4, errors=3, xfailed=1, skipped=1)
    assert "FAILED test_it.py::test_keeps_its_log_around_steps" in out and "PASSED test_it.py::test_fits" in out
    large = out[out.index("_ test_is_too_large _"):]
    for words in ("test_is_too_large: 660,992 bytes (645.5 KiB) of device memory at the peak are 460,992 more than the "
                  "limit of 200,000\nthe peak on cpu was reached by linear_grad in 0, test_it.py:7 in train, where these were "
                  "live:\n"
                  "   257.0 KiB  parameter       empty in 0, test_it.py:6 in train, 2 buffers\n",
                  "    64.0 KiB  residual        full in (root), test_it.py:7 in train\n"):
        assert words in large, words
    assert "Traceback" not in out and "in call" not in out
    assert "4,096 bytes of device memory that the test made are still live on cpu, 4,096 more than the limit of 0:" in out
    assert "ERROR test_it.py::test_leaks - Failed: test_it.py::test_leaks: 4,096 bytes" in out
    assert out.count("limit_device_memory('24 XB'): a size such as '64MiB', '1.5 GB' or 4096 was expected, but got") == 1
    assert out.count("test_no_size_at_all: limit_device_leaks(): one size was expected\n") == 1


def test_the_fixture_says_what_the_test_makes(run):
    text = """
def test_it(device_memory):
    assert (device_memory.live, device_memory.peak) == (0, 0)
    x = gradcore.ones(1000, device=device_memory.device)
    y = x * 2
    assert (device_memory.live, device_memory.peak) == (8192, 8192)
    del x
    assert (device_memory.live, device_memory.peak) == (4096, 8192)
    assert "mul in (root), test_it.py:12 in test_it" in str(device_memory)
    assert device_memory.device.type == "%s"

def test_late(request):
    request.getfixturevalue("device_memory")
"""
    result, out = run(text % "cpu")
    result.assert_outcomes(passed=1, failed=1)
    assert "test_late is not watched: ask for device_memory by an argument" in out
    run(text % "meta", "--gradcore-device", "meta")[0].assert_outcomes(passed=1, failed=1)


BASELINE = """
WIDTH = {width}

@pytest.mark.limit_device_memory("1 GiB")
@pytest.mark.parametrize("scale", [1, 2, 3])
def test_scales(device_memory, scale):{lines} train(WIDTH * scale, device_memory.device)

@pytest.mark.usefixtures("device_memory")
def test_same(): gradcore.ones(100)

def test_unwatched(): gradcore.ones(10 ** 6)
"""
OPTIONS = ("--gradcore-memory-baseline", "peaks.json")


def test_a_baseline(pytester, run):
    file = pytester.path / "peaks.json"
    small, large = (BASELINE.format(width=w, lines="") for w in (128, 256))

    result, _ = run(small, *OPTIONS)
    assert result.ret != 0
    assert "there is no baseline peaks.json: --gradcore-memory-update makes it" in result.stderr.str() + result.stdout.str()

    result, out = run(small, *OPTIONS, "--gradcore-memory-update")
    result.assert_outcomes(passed=5)
    assert "gradcore: 4 peaks of device memory were written to peaks.json" in out
    written = file.read_text()
    tests = json.loads(written)["tests"]
    assert sorted(tests) == ["test_it.py::test_same", *(f"test_it.py::test_scales[{n}]" for n in (1, 2, 3))] == list(tests)
    for found in tests.values():
        assert found["allocated"] == sum(o["allocated"] for o in found["owners"]) >= found["requested"] > 0
    assert tests["test_it.py::test_same"]["owners"] == [
        {"allocated": 512, "layer": "", "line": "test_it.py:16 in test_same", "op": "full"}]

    # Lines that move are no growth, and neither is another device.
    result, out = run(BASELINE.format(width=128, lines="\n\n\n   "), *OPTIONS, "--gradcore-device", "meta")
    result.assert_outcomes(passed=5)
    assert "4 peaks of device memory were compared with peaks.json, 0 are lower, and 0 are not in it\n" in out

    result, out = run(large + "\ndef test_new(device_memory): pass\n", *OPTIONS)
    result.assert_outcomes(passed=3, failed=3)
    before = tests["test_it.py::test_scales[1]"]["allocated"]
    assert f"test_scales[1]: the peak of device memory grew from {before:,} to " in out
    assert "+131,584          131,584 ->         263,168  empty in 0, test_it.py:6 in train" in out
    assert "4 peaks of device memory were compared with peaks.json, 0 are lower, and 1 are not in it" in out
    assert file.read_text() == written

    result, _ = run(large, *OPTIONS, "--gradcore-memory-update", "-k", "scales")
    result.assert_outcomes(passed=3)
    result, out = run(small, *OPTIONS)
    result.assert_outcomes(passed=5)
    assert "3 are lower" in out


def test_a_baseline_of_several_workers(pytester, run):
    if importlib.util.find_spec("xdist") is None:
        pytest.skip("pytest-xdist is not installed: pip install -e '.[test]'")
    small, large = (BASELINE.format(width=w, lines="") for w in (128, 256))
    run(small, *OPTIONS, "--gradcore-memory-update")[0].assert_outcomes(passed=5)
    file = pytester.path / "peaks.json"
    written = file.read_text()
    file.unlink()
    result, out = run(None, *OPTIONS, "--gradcore-memory-update", "-n", "2")
    result.assert_outcomes(passed=5)
    assert file.read_text() == written and "4 peaks of device memory were written to peaks.json" in out
    result, out = run(large, *OPTIONS, "-n", "2")
    result.assert_outcomes(passed=2, failed=3)
    assert "gradcore: 4 peaks of device memory were compared" in out and "empty in 0, test_it.py:6 in train" in out


@pytest.mark.parametrize(("options", "text", "words"), [
    (("--gradcore-memory-update",), None, "--gradcore-memory-update needs --gradcore-memory-baseline FILE"),
    (OPTIONS, "[1]", "peaks.json is no baseline of device memory: the baseline should be an object"),
    (OPTIONS, "{", "peaks.json is no baseline of device memory"),
    (OPTIONS, '{"version": 2, "tests": {}}', "peaks.json: a baseline of version 1 was expected, but got 2")])
def test_options_that_cannot_be_kept(pytester, run, options, text, words):
    if text is not None:
        (pytester.path / "peaks.json").write_text(text)
    result, out = run("def test_it(): pass", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert words in result.stderr.str() + out
    assert "Traceback" not in result.stderr.str() + out

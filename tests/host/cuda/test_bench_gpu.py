"""The command for a machine with a GPU, rehearsed on the CPU: failures of single parts, and the parts of CuPy that it needs."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench.gpu import schedule
from bench.gpu.__main__ import PARTS
from bench.gpu.page import page
from bench.gpu.part import Outcome, Part, Setting, find, run_part

ROOT = Path(__file__).resolve().parents[3]
CUPY = importlib.util.find_spec("cupy") is not None


#: The whole takes a minute; where CuPy is not installed, some of the parts are rehearsed, among them those that look for it.
SOME = ("environment", "compile", "kernels", "train", "logs", "memory", "bandwidth")
REHEARSED = [part for part in PARTS if CUPY or part.name in SOME]


@pytest.mark.extras
def test_the_command_rehearses_on_the_cpu(tmp_path):
    parts = [] if CUPY else ["--parts", *[part.name for part in REHEARSED]]
    done = subprocess.run([sys.executable, "-m", "bench.gpu", "--out", str(tmp_path), "--cpu-rehearsal", *parts], cwd=ROOT,
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["rehearsal"] is True
    assert {name: part["status"] for name, part in found["parts"].items()} == {
        part.name: "not run" if part.needs_gpu or (part.name in ("kernels", "compile") and not CUPY) else "ok"
        for part in REHEARSED}
    assert not CUPY or found["parts"]["compile"]["figures"]["instances"] > 1500
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpu.json", "gpu.md"]
    assert not any(part["problems"] for part in found["parts"].values())
    logs = found["parts"]["logs"]["table"]
    assert [row[-1] for row in logs] == ["same as meta", "yes", "yes", "yes"]
    assert not CUPY or found["parts"]["kernels"]["figures"]["calls"] > 200
    assert len(found["parts"]["bandwidth"]["table"]) > 20
    text = (tmp_path / "gpu.md").read_text()
    assert text.startswith("# Rehearsal on the CPU")
    assert "Problems" not in text
    for part in REHEARSED:
        assert f"| {part.name} |" in text


def test_the_parts_fit_into_nine_minutes():
    assert sum(part.seconds for part in PARTS) < 540
    for part in PARTS:
        assert callable(find(part.function))
        assert part.question.endswith("?")


def test_the_file_is_json_for_any_reader_if_a_figure_is_none(tmp_path, monkeypatch):
    from bench.gpu import __main__ as command

    outcome = Outcome(figures={"losses": [1.5, float("nan")], "ratio": float("-inf")})
    monkeypatch.setattr(command, "PARTS", (Part("a", "?", "", 10),))
    monkeypatch.setattr(schedule, "run_part", lambda *what: outcome)
    monkeypatch.setattr(sys, "argv", ["bench.gpu", "--out", str(tmp_path)])
    with pytest.raises(SystemExit):
        command.main()

    def refuse(name):
        raise ValueError(name)

    found = json.loads((tmp_path / "gpu.json").read_text(), parse_constant=refuse)
    assert found["parts"]["a"]["figures"] == {"losses": [1.5, "nan"], "ratio": "-inf"}


def test_a_part_is_stopped_when_its_own_and_spare_seconds_are_over(tmp_path):
    part = Part("planted", "Does it fail?", "tests.host.cuda.test_bench_gpu:tells_its_seconds", 5)
    assert run_part(part, Setting("cpu", False, tmp_path), 7.9).figures == {"seconds": 8.0}


# -- parts that fail ------------------------------------------------------------------------------------------------------


def crashes(setting):
    print("about to go")
    sys.stdout.flush()
    os._exit(9)


def hangs(setting):
    print("about to wait")
    time.sleep(600)


def raises(setting):
    raise ValueError("planted")


def finds(setting):
    return Outcome("found something", ["it is wrong"], [["a | b"], ["1"]], {"device": setting.device})


def tells_its_seconds(setting):
    return Outcome(figures={"seconds": setting.seconds})


def hangs_later(setting):
    setting.keep(Outcome("found one", table=[["a"], ["1"]]))
    time.sleep(600)


def raises_later(setting):
    setting.keep(Outcome("found one", table=[["a"], ["1"]]))
    raise ValueError("planted")


@pytest.mark.parametrize(("function", "summary", "problem"), [
    (hangs_later, "timed out after 3 s; before: found one", "timed out after 3 s"),
    (raises_later, "found one", "ValueError: planted")])
def test_what_a_part_has_measured_is_not_lost(function, summary, problem, tmp_path):
    # One that raises ends by itself, however busy the machine is.
    seconds = 3 if "3 s" in problem else 60
    part = Part("planted", "Does it fail?", f"tests.host.cuda.test_bench_gpu:{function.__name__}", seconds)
    outcome = run_part(part, Setting("cpu", False, tmp_path))
    assert (outcome.status, outcome.summary, outcome.table) == ("failed", summary, [["a"], ["1"]])
    assert len(outcome.problems) == 1 and problem in outcome.problems[0]
    assert not list(tmp_path.iterdir())


def dies(setting):
    ctypes.string_at(0)


@pytest.mark.parametrize(("function", "seconds", "texts"), [
    (crashes, 60, ["about to go"]), (hangs, 9, ["timed out after 9 s", "in hangs\n", "about to wait"]),
    (dies, 60, ["in dies\n"]), (raises, 60, ["ValueError: planted"]), (finds, 60, ["it is wrong"])])
def test_a_part_that_fails_is_recorded(function, seconds, texts, tmp_path):
    part = Part("planted", "Does it fail?", f"tests.host.cuda.test_bench_gpu:{function.__name__}", seconds)
    outcome = run_part(part, Setting("cpu", False, tmp_path))
    assert outcome.status == "failed"
    assert all(any(text in problem for problem in outcome.problems) for text in texts)
    assert not list(tmp_path.iterdir())
    written = page([(part, outcome)], rehearsal=False, seconds=1.0)
    assert "## Problems" in written
    assert all(text in written for text in texts)


def test_memory_that_no_pool_holds_is_unaccounted():
    from bench.gpu.libraries import differences

    first = {"after": "the operands", "free": 1000, "segments": 100, "library": 0, "undeclared": 0, "unseen": ""}
    later = {"after": "a product", "free": 500, "segments": 300, "library": 250, "undeclared": 7, "unseen": ""}
    assert differences([first, later]) == [
        {"after": "a product", "driver": 500, "library": 250, "segments": 200, "unaccounted": 50, "undeclared": 7}]
    assert differences([{**first, "free": None}, {**later, "free": None}])[0]["unaccounted"] is None


@pytest.mark.parametrize(("answer", "problem"), [
    ((0, '{"batch_size": 7, "allocated": 5, "reserved": 6, "confirmed": false}'), "but on the device its peak differs"),
    ((0, '{"batch_size": 7, "allocated": 5, "reserved": 6, "confirmed": null}'), "but on the device it was not run"),
    ((1, "gradcore: out of memory"), "code 1: gradcore: out of memory"), ((None, ""), "it timed out")])
def test_a_largest_batch_that_does_not_fit_is_a_problem(answer, problem, tmp_path, monkeypatch):
    from bench.gpu import limits

    monkeypatch.setattr(limits, "run_limited", lambda *what: answer)
    outcome = limits.largest_batch(Setting("cpu", True, tmp_path, 9))
    assert len(outcome.problems) == 1
    assert problem in outcome.problems[0]


def test_logs_that_part_say_where():
    from bench.gpu.correct import first_difference

    assert first_difference([["a", "b"]], [["a", "b"]]) is None
    assert first_difference([["a"], ["a", "c"]], [["a"], ["a", "b"]]) == "step 1, record 1: c, but meta has b"
    assert first_difference([["a", "b"]], [["a"]]) == "step 0 has 2 records, but meta's 1"


def test_the_stress_of_streams_counts_what_is_wrong():
    from bench.gpu.streams import Stress, poisoned

    with poisoned("cpu") as device:
        stress = Stress(device, 0)
        stress.run(200)
        while not stress.live:
            stress.make()
        tensor, stamp, last = stress.live[0]
        tensor[:7] = -1
        stress.live = [(tensor, stamp, last)]
        stress.use()
        del tensor
        assert stress.found() == 7
        assert stress.device.ledger.allocated == 8 * 512, "its counts"


# -- what is asked of CuPy --------------------------------------------------------------------------------------------------

without_cupy = pytest.mark.skipif(not CUPY,
                                  reason="CuPy is not installed: pip install -e '.[nodriver]'")


@without_cupy
def test_cupy_has_what_the_parts_call():
    import cupy
    from cupy.cuda import runtime
    from cupy_backends.cuda.libs import nvrtc

    for owner, names in ((cupy, "add asnumpy from_dlpack ones"),
                         (cupy.cuda, "Event Stream alloc get_elapsed_time set_allocator"),
                         (cupy.cuda.Stream, "begin_capture end_capture synchronize"), (cupy.cuda.Graph, "launch"),
                         (cupy.cuda.Event, "record synchronize"), (nvrtc, "getVersion"),
                         (cupy.cuda.MemoryPointer, "copy_from_device_async copy_from_host copy_to_host"),
                         (runtime, "CUDARuntimeError deviceSynchronize getDeviceProperties memGetInfo runtimeGetVersion"),
                         (runtime, "deviceGetPCIBusId eventElapsedTime eventQuery freeHost hostAlloc malloc memcpyAsync"),
                         (runtime, "memsetAsync pointerGetAttributes setDevice streamCreateWithPriority streamWaitEvent"),
                         (cupy.cuda.Stream, "from_external null use")):
        for name in names.split():
            assert hasattr(owner, name), f"{owner} has no {name}"


@without_cupy
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled")
@pytest.mark.parametrize("exact", [False, True])
def test_operands_on_the_device_keep_their_layout(exact, tmp_path, monkeypatch):
    """With host memory in place of CuPy's: kernels get the elements, their results are returned, margins are checked."""
    import cupy
    from cupy.cuda import memory

    from bench.gpu.rows import DeviceCopy, Unwritten
    from tests.host.cuda.cuda_rows import Both
    from tests.host.cuda.emulator import Emulator, HostMemory
    from tests.rows_cuda import SIZES

    class Pointer(memory.MemoryPointer):
        def copy_from_host(self, mem, size):
            ctypes.memmove(self.ptr, mem, size)

        def copy_to_host(self, mem, size):
            ctypes.memmove(mem, self.ptr, size)

    def alloc(size):
        held = np.full(size, 7, np.uint8)
        return Pointer(HostMemory(held, held.ctypes.data), 0)

    monkeypatch.setattr(cupy.cuda, "alloc", alloc)
    rows = [row for row in SIZES if row.op in ("take", "add_", "arange", "take_grad")]
    emulator = Emulator(tmp_path)
    with emulator.in_place():
        for row in rows:
            Both(emulator).run(row, np.float32)
        emulator.compile()
        emulator.sanitize = exact
        for row in rows:
            assert Both(emulator, copy=DeviceCopy).run(row, np.float32)
            assert Both(emulator, copy=DeviceCopy, results=Unwritten).run(row, np.float32)
    # A tool would take what was uploaded for written, and report what is read back of a workspace.
    y = Unwritten(np.zeros(4, np.uint8), exact)
    y.check("nothing")
    assert ctypes.string_at(y.cupy().data.ptr, 4) == bytes([7] * 4) and not y.array.any()
    x = DeviceCopy(np.arange(24, dtype=np.float32).reshape(4, 6)[::-1, 1::2], exact)
    np.testing.assert_array_equal(np.lib.stride_tricks.as_strided(first_of(x.cupy()), x.array.shape, x.array.strides), x.array)
    if not exact:
        ctypes.memset(x.cupy().data.ptr + 8, 0, 80)
        with pytest.raises(AssertionError, match="planted wrote outside"):
            x.check("planted")


def first_of(array):
    """The first element of an array in host memory."""
    return np.ctypeslib.as_array((ctypes.c_float * 1).from_address(array.data.ptr))


@without_cupy
def test_a_launch_and_a_product_are_made_again_without_the_python_before_them(monkeypatch):
    from cupy.cuda import runtime

    from bench.gpu.host import call_of, launch_of
    from gradcore.devices.gpu import gemm as gpu_gemm
    from gradcore.devices.gpu import launch as gpu_launch
    from gradcore.devices.gpu import workspaces as gpu_workspaces
    from tests.host.cuda.emulator import products
    from tests.host.cuda.fake_cublas import FakeLt
    from tests.host.cuda.test_gemm import multiplied

    calls = []
    monkeypatch.setattr(gpu_launch, "_function", lambda *which: lambda *what: calls.append((which, what)))
    monkeypatch.setattr(runtime, "getDevice", lambda: 0)
    run = launch_of(lambda: gpu_launch.start("elementwise", "map<Add>", 3, 256, (1, 2)))
    assert calls == []
    run()
    assert calls == [(("elementwise", "map<Add>", 0), ((3,), (256,), (1, 2)))]
    library = products(FakeLt(lambda: False))
    monkeypatch.setattr(gpu_gemm, "library", lambda: library)
    monkeypatch.setattr(gpu_gemm, "current_stream", lambda: 7)
    monkeypatch.setattr(gpu_workspaces, "runtime", SimpleNamespace(streamIsCapturing=lambda stream: False))
    a = np.ones((4, 4), np.float32)
    run = call_of(lambda: multiplied(a, a))
    assert library._lt.calls == []
    run()
    run()
    assert [call["sizes"] for call in library._lt.calls] == [(4, 4, 4)] * 2


@without_cupy
@pytest.mark.parametrize("every", [1, 60])
def test_every_op_and_dtype_is_tried_before_time_runs_out(every):
    """Calls in 16 bits are listed last, and the second run on an H200 ended before it came to them."""
    from bench.gpu.rows import chosen
    from tests.host.cuda.cuda_rows import calls

    listed, asked = calls(), [(row, dtype) for row, dtype in chosen(every)]
    kinds = list(dict.fromkeys((row.op, dtype) for row, dtype in listed))
    assert [(row.op, dtype) for row, dtype in asked[:len(kinds)]] == kinds
    assert len({(id(row), dtype) for row, dtype in asked}) == len(asked)
    assert {id(row) for row, dtype in listed[::every]} <= {id(row) for row, dtype in asked}


@without_cupy
def test_a_runner_takes_kernels_of_other_tables():
    """The given kernels are compared: a planted error is detected."""
    from bench.gpu.rows import HostCopy
    from gradcore.devices.host.device import host_table
    from tests.host.cuda.cuda_rows import Both
    from tests.rows import ROWS

    runner = SimpleNamespace(libraries=True, sanitize=False, falling=False)
    row = next(row for row in ROWS if row.op == "exp" and row.name == "plain")
    assert Both(runner, own=host_table(), copy=HostCopy).run(row, np.float32) == ["exp"]
    with pytest.raises(AssertionError, match="exp"):
        Both(runner, own={**host_table(), "exp": lambda x, out: np.add(x, 1, out)}, copy=HostCopy).run(row, np.float32)

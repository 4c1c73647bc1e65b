"""What a compiled function asks of the world outside: it is not replayed, or the answer is guarded."""

from __future__ import annotations

import contextlib
import contextvars
import cProfile
import datetime
import itertools
import logging
import mimetypes
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gradcore

FACTOR = contextvars.ContextVar("FACTOR", default=1.0)
#: A file, whose number each test sets.
NUMBER = Path(tempfile.gettempdir()) / f"gradcore-number-{os.getpid()}"


def twice(x: Any, *asked: Any) -> Any:
    return x * 2


ASKING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "the time": (lambda x: twice(x, time.time()), "calls time.time(), which may give something else each time"),
    "a counter": (lambda x: twice(x, time.perf_counter_ns()), "calls time.perf_counter_ns()"),
    "the date": (lambda x: twice(x, datetime.date.today()), "calls date.today()"),
    "date and time": (lambda x: twice(x, datetime.datetime.now()), "calls datetime.now()"),
    "a file": (lambda x: x * float(open(NUMBER).read()), "calls open()"),  # noqa: SIM115
    "a file by its path": (lambda x: x * float(NUMBER.read_text()), "calls open()"),
    "what a library reads": (lambda x: twice(x, mimetypes.read_mime_types(str(NUMBER))), "calls open()"),
    "a file of NumPy's": (lambda x: x * float(np.fromfile(NUMBER, sep=" ")[0]), "calls fromfile()"),
    "a file by a process": (lambda x: x * float(subprocess.check_output(["cat", NUMBER])), "calls open()"),
    "whether a file exists": (lambda x: twice(x, os.path.exists(NUMBER)), "calls os."),
    "whether a path exists": (lambda x: twice(x, NUMBER.exists()), "calls os."),
    "a folder": (lambda x: twice(x, os.listdir(NUMBER.parent)), "calls os.listdir()"),
    "the process": (lambda x: twice(x, os.getpid()), "calls os.getpid()"),
    "the memory in use": (lambda x: twice(x, gradcore.memory_allocated()), "asks for figures of the memory"),
    "the peak of a GPU's": (lambda x: twice(x, gradcore.cuda.max_memory_allocated()), "asks for figures of the memory"),
    "figures as text": (lambda x: twice(x, gradcore.memory_summary()), "asks for figures of the memory"),
    "a new peak": (lambda x: twice(x, gradcore.reset_peak_memory_stats()), "calls reset_peak_memory_stats(), which a replay"),
    "a limit": (lambda x: twice(x, gradcore.set_memory_limit(None)), "calls set_memory_limit(), which a replay"),
    "how to print": (lambda x: twice(x, gradcore.set_printoptions(precision=4)), "calls set_printoptions(), which a replay"),
    "what distributions check": (lambda x: twice(x, gradcore.distributions.Distribution.set_default_validate_args(False)),
                                 "calls set_default_validate_args(), which a replay"),
    "a unique name": (lambda x: twice(x, uuid.uuid4()), "calls os.urandom()"),
    "a name from the time": (lambda x: twice(x, uuid.uuid1()), "takes a number from the system"),
    "the system's chance": (lambda x: twice(x, random.SystemRandom().random()), "takes a number from the system"),
}


@pytest.mark.parametrize("name", ASKING)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_function_that_asks_is_not_replayed(name: str) -> None:
    function, reason = ASKING[name]
    try:
        f = gradcore.compile(function)
        for number in (2, 2, 3):
            NUMBER.write_text(str(number))
            f(gradcore.ones(1))
        line = f"test_compile_outside.py:{function.__code__.co_firstlineno} {reason}"
        assert not f.programs and all(line in trace for trace in f.traces)
        assert f(gradcore.ones(1)).item() == (3 if name.startswith("a file") else 2)
    finally:
        NUMBER.unlink()


def test_a_file_that_is_open_is_read_at_each_call() -> None:
    with tempfile.TemporaryFile("w+") as file:
        file.write("2\n2\n3\n")
        file.seek(0)
        f = gradcore.compile(lambda x: x * float(file.readline()))
        assert [f(gradcore.ones(1)).item() for _ in range(3)] == [2, 2, 3]
        assert "calls readline() of a file" in f.traces[0]


def test_a_file_that_is_open_is_iterated_at_each_call() -> None:
    with tempfile.TemporaryFile("w+") as file:
        file.write("2\n2\n3\n")
        file.seek(0)
        with open(file.fileno(), closefd=False) as lines:
            f = gradcore.compile(lambda x: x * float(*itertools.islice(lines, 1)))
            assert [f(gradcore.ones(1)).item() for _ in range(3)] == [2, 2, 3]
        assert "draws from the variable lines" in f.traces[0]


@pytest.mark.parametrize("read", [os.environ.__getitem__, os.getenv, os.environ.get])
def test_variables_of_the_environment_are_guarded(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCORE_TEST", "2")
    f = gradcore.compile(lambda x: x * float(read("GRADCORE_TEST")))
    found = []
    for value in "2232":
        monkeypatch.setenv("GRADCORE_TEST", value)
        found.append(f(gradcore.ones(1)).item())
    assert found == [2, 2, 3, 2] and len(f.traces) == 2
    assert f.traces[1] == "the environment variable GRADCORE_TEST is '3' and was '2'"


def test_whether_a_variable_is_set_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    f = gradcore.compile(lambda x: x * 2 if "GRADCORE_TEST" in os.environ else x * 3)
    found = [f(gradcore.ones(1)).item(), f(gradcore.ones(1)).item()]
    monkeypatch.setenv("GRADCORE_TEST", "")
    assert [*found, f(gradcore.ones(1)).item()] == [3, 3, 2]


@pytest.mark.parametrize("names", [lambda: [*os.environ], lambda: dict(os.environ), lambda: os.environ.copy()])
def test_which_variables_are_set_is_guarded(names: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    f = gradcore.compile(lambda x: x * sum(name == "GRADCORE_TEST" for name in names()))
    found = [f(gradcore.ones(1)).item(), f(gradcore.ones(1)).item()]
    monkeypatch.setenv("GRADCORE_TEST", "")
    assert [*found, f(gradcore.ones(1)).item()] == [0, 0, 1] and len(f.traces) == 2


def test_variables_of_the_environment_are_guarded_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    f = gradcore.compile(lambda x: x * float(os.environb[b"GRADCORE_TEST"]))
    found = []
    for value in "223":
        monkeypatch.setenv("GRADCORE_TEST", value)
        found.append(f(gradcore.ones(1)).item())
    assert found == [2, 2, 3] and len(f.traces) == 2


def test_variables_of_contexts_are_guarded() -> None:
    f = gradcore.compile(lambda x: x * FACTOR.get())
    found = []
    for value in (1.0, 1.0, 4.0, 1.0):
        token = FACTOR.set(value)
        found.append(f(gradcore.ones(1)).item())
        FACTOR.reset(token)
    assert found == [1, 1, 4, 1] and len(f.traces) == 2 and f.traces[1] == "the context variable FACTOR is 4.0 and was 1.0"


def test_what_variables_of_contexts_hold_is_guarded() -> None:
    settings = contextvars.ContextVar("settings", default={"scale": [1.0]})  # noqa: B039
    f = gradcore.compile(lambda x: x * settings.get()["scale"][0])
    found = []
    for value in (1.0, 1.0, 4.0):
        settings.get()["scale"][0] = value
        found.append(f(gradcore.ones(1)).item())
    assert found == [1, 1, 4] and len(f.traces) == 2
    assert f.traces[1] == "the context variable settings is {'scale': [4.0]} and was {'scale': [1.0]}"


def test_a_function_that_leaves_another_value_in_a_variable_of_a_context_is_not_replayed() -> None:
    counter = contextvars.ContextVar("counter", default=0)

    def count(x: Any) -> Any:
        counter.set(counter.get() + 1)
        return x * counter.get()

    f = gradcore.compile(count)
    assert [f(gradcore.ones(1)).item() for _ in range(3)] == [1, 2, 3]
    assert f.traces[0].endswith("the function changes what it reads: the context variable counter is 1 and was 0")

    def restore(x: Any) -> Any:
        token = counter.set(2)
        try:
            return x * counter.get()
        finally:
            counter.reset(token)

    f = gradcore.compile(restore)
    assert [f(gradcore.ones(1)).item() for _ in range(3)] == [2, 2, 2] and len(f.programs) == len(f.traces) == 1


def test_another_context_is_not_replayed() -> None:
    context = contextvars.copy_context()
    f = gradcore.compile(lambda x: x * context.run(FACTOR.get))
    assert f(gradcore.ones(1)).item() == 1
    context.run(FACTOR.set, 4.0)
    assert f(gradcore.ones(1)).item() == 4 and "calls run() of _contextvars" in f.traces[0]


def test_what_python_asks_for_itself_is_no_reason(capsys: Any) -> None:
    # A record of logging has the time, and print writes to a file.
    def function(x: Any) -> Any:
        logging.getLogger("gradcore.test").warning("a step at %s", os.path.join("a", "b"))
        print("a step")
        time.sleep(0)
        return x * 2

    f = gradcore.compile(function)
    for _ in range(3):
        assert f(gradcore.ones(1)).item() == 2
    assert len(f.traces) == len(f.programs) == 1 and capsys.readouterr().out == "a step\n"


class Stream:
    """As a notebook's: Python code, with a state, that asks the clock and the system."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.at = 0.0

    def write(self, text: str) -> None:
        self.at = time.time()
        self.lines += [f"{os.getpid() > 0} {text}"] * (text != "\n")

    def flush(self) -> None:
        pass


class Named:
    def __str__(self) -> str:
        return f"a step at {time.time() > 0}"


@pytest.mark.parametrize("way", ["print", "logging"])
def test_what_the_streams_of_print_and_logging_do_is_no_reason(way: str) -> None:
    stream, log = Stream(), logging.Logger("gradcore.test")
    log.addHandler(logging.StreamHandler(stream))

    def function(x: Any) -> Any:
        print(Named(), file=stream) if way == "print" else log.warning("%s", Named())
        return x * 2

    f = gradcore.compile(function)
    for _ in range(3):
        assert f(gradcore.ones(1)).item() == 2
    assert len(f.programs) == 1 and len(stream.lines) == 1 and "a step at True" in stream.lines[0]


@pytest.mark.parametrize("way", ["print", "logging"])
def test_what_is_asked_after_a_stream_has_failed_is_seen(way: str) -> None:
    class Broken(Stream):
        def write(self, text: str) -> None:
            raise OSError("closed")

    class Handler(logging.StreamHandler[Any]):
        def handleError(self, record: Any) -> None:
            raise OSError("closed")

    log = logging.Logger("gradcore.test")
    log.addHandler(Handler(Broken()))

    def function(x: Any) -> Any:
        with contextlib.suppress(OSError):
            print("a step", file=Broken()) if way == "print" else log.warning("a step")
        return twice(x, time.time())

    f = gradcore.compile(function)
    assert f(gradcore.ones(1)).item() == 2 and not f.programs and "calls time.time()" in f.traces[0]


def test_asking_ends_in_eager_runs_with_a_warning() -> None:
    f = gradcore.compile(lambda x: twice(x, time.time()), max_programs=2)
    f(gradcore.ones(1))
    f(gradcore.ones(1))
    with pytest.warns(RuntimeWarning, match=r"calls time\.time\(\)"):
        f(gradcore.ones(1))


def test_what_is_read_while_a_profiler_runs_is_seen() -> None:
    options = SimpleNamespace(scale=2.0)

    def scaled(x: Any) -> Any:
        return x * options.scale

    def function(x: Any) -> Any:
        # It takes the place of what watches a trace, up to Python 3.11, and leaves it empty.
        return cProfile.Profile().runcall(scaled, x)

    f = gradcore.compile(function)
    found = [f(gradcore.ones(1)).item() for _ in range(2)]
    options.scale = 3.0
    assert [*found, f(gradcore.ones(1)).item()] == [2.0, 2.0, 3.0]


def test_the_first_use_of_a_device_is_not_missed() -> None:
    # In a process of its own, in which no test has used the device.
    program = """
import gradcore
f = gradcore.compile(lambda x: (x * 2, gradcore.ones(2, device="meta") * 2))
f(gradcore.ones(1))
print(f.traces)
try:
    f(gradcore.ones(1))
except gradcore.errors.TraceError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        "['the first call; it cannot be replayed: it is the first to use meta, whose ops were not recorded']",
        "a traced function runs on one device, but this one ran ops on cpu, meta"], done

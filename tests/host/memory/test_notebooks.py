"""In a notebook: lines are those of cells, and what holds memory has the names that a notebook gives it."""

from __future__ import annotations

import gc
import io
import pdb
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gradcore
from gradcore import report
from gradcore._holders import holders_of
from gradcore.reading import short_path
from tests.host.memory.holding import CPU, holder

#: As a kernel names the files of its cells, of which there are none on disk.
FILE = "/tmp/ipykernel_7/123.py"
CELL = """
w = gradcore.ones(1000, requires_grad=True)
def train():
    with gradcore.step() as step:
        (w * w).sum().backward()
    return step
"""


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def cell_runs() -> Iterator[Run]:
    """Runs a cell, and gives the names of the notebook after it."""
    spaces: list[dict[str, Any]] = []

    def runs(source: str, **names: Any) -> dict[str, Any]:
        spaces.append({"gradcore": gradcore, **names})
        exec(compile(source, FILE, "exec"), spaces[-1])
        return spaces[-1]

    yield runs
    for space in spaces:
        space.clear()


@pytest.fixture
def number(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Gives the cell a number, as IPython does each time when it has run."""
    numbers = {FILE: 4}
    shell = SimpleNamespace(compile=SimpleNamespace(
        format_code_name=lambda name: ("Cell", f"In[{numbers[name]}]") if name in numbers else None))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    yield lambda n: numbers.update({FILE: n})


@pytest.mark.usefixtures("number")
def test_a_report_names_the_cell_and_so_do_files_of_it(tmp_path: Path, cell_runs: Run) -> None:
    step = cell_runs(CELL)["train"]()
    assert step.report.peak.line == "In[4]:5 in train" and "In[4]:2 in <module>" in step.report.by_line
    assert "reached by mul in layer (root), phase backward, In[4]:5 in train\n" in str(step.report)
    # Another process knows no cells.
    for format in ("json", "csv", "trace"):
        step.recording.export(tmp_path / format, format)
        text = (tmp_path / format).read_text()
        assert "In[4]" in text and "ipykernel" not in text
    step.recording.export(tmp_path / "snapshot", "snapshot")
    assert report.snapshot.load_snapshot(tmp_path / "snapshot")[1].peak.line == "In[4]:5 in train"
    assert "ipykernel" not in step.recording._repr_html_()


@pytest.mark.usefixtures("number")
def test_errors_and_summaries_name_the_cell(cell_runs: Run) -> None:
    space = cell_runs("w = gradcore.ones(50_000, requires_grad=True)\ny = w * w\n\nz = y.numpy")
    assert "output of mul in layer (root), In[4]:2\n" in gradcore.memory_summary()
    assert "MulBackward0 of (root), In[4]:2:" in str(gradcore.graph(space["y"]))
    array = space["z"]
    with gradcore.no_grad():
        cell_runs("w.add_(1)", w=space["w"])
    with pytest.raises(RuntimeError, match=r"It was last written at In\[4\]:1 by add_"):
        space["y"].sum().backward()
    del array
    gradcore.set_memory_limit(gradcore.memory_reserved())
    try:
        with pytest.raises(gradcore.OutOfMemory, match=r"setup, In\[4\]:2; ") as error:
            cell_runs("\ngradcore.ones(100_000_000)")
    finally:
        gradcore.set_memory_limit(None)
    assert (error.value.file, error.value.line) == ("In[4]", 2)


@pytest.mark.usefixtures("number")
def test_what_a_compiled_function_refuses_is_in_a_cell(cell_runs: Run) -> None:
    space = cell_runs("import time\nnotes = {}\n@gradcore.compile\ndef f(x):\n    return x * (x.sum().item() + 1)\n"
                      "@gradcore.compile\ndef g(x):\n    return x * time.time()\n"
                      "@gradcore.compile\ndef h(x):\n    notes['n'] = 1\n    return x + 1\n")
    with pytest.raises(RuntimeError, match=r"^In\[4\]:5 reads a value"):
        space["f"](gradcore.ones(3))
    for name, reason in ("g", "In[4]:8 calls time.time()"), ("h", "In[4]:11 assigns"):
        space[name](gradcore.ones(3))
        assert reason in space[name].explain()


def test_a_cell_that_ran_again_has_the_number_that_is_beside_it(number: Callable[[int], None], cell_runs: Run) -> None:
    train = cell_runs(CELL)["train"]
    step = train()
    number(9)
    assert step.report.peak.line == "In[9]:5 in train"


def test_outside_of_a_notebook_a_file_has_its_name(monkeypatch: pytest.MonkeyPatch, cell_runs: Run) -> None:
    assert short_path(f"{FILE}:3 in train") == f"{FILE}:3 in train"
    # With an IPython that does not tell, such as one that has been imported only.
    for found in (None, SimpleNamespace()):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda found=found: found))
        assert cell_runs(CELL)["train"]().report.peak.line == f"{FILE}:5 in train"


# -- what holds it -----------------------------------------------------------------------------------------------------


def test_a_result_that_a_cell_has_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    layer = gradcore.nn.Linear(3, 4)
    serial = layer.weight.storage.serial
    shown = {2: layer}
    for name, value in {"Out": shown, "_": layer, "_2": layer}.items():
        monkeypatch.setattr(module, name, value, raising=False)
    del layer, value
    shown = None  # type: ignore[assignment]
    assert holder(serial) == f"Out[2].weight in {__name__}"
    # Only one of the two is gone.
    module.Out.clear()  # type: ignore[attr-defined]
    assert holder(serial) == f"_2.weight in {__name__}"
    monkeypatch.undo()


class Result:
    """As that of a cell, which a frame of its error's traceback has."""

    error: Any


SERIALS: list[int] = []


def run_cell(call: Callable[[], Any]) -> None:
    result = Result()
    try:
        call()
    except ValueError as error:
        result.error = error


def fails(deep: int = 0, shown: bool = False) -> None:
    if deep:
        return fails(deep - 1, shown)
    batch = gradcore.ones(100)
    SERIALS.append(batch.storage.serial)
    if shown:
        locals()
    raise ValueError


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("deep", [0, 25])
def test_the_error_of_an_earlier_cell_is_garbage(deep: int) -> None:
    # IPython's text of a traceback has read the variables.
    run_cell(lambda: fails(deep, shown=True))
    assert holder(SERIALS[-1]) == "a reference cycle of ValueError, which only gc.collect() frees"


@pytest.mark.usefixtures("uncollected")
def test_errors_of_many_cells_are_garbage() -> None:
    for _ in range(20):
        run_cell(lambda: fails(5))
    wanted = SERIALS[-20:]
    garbage = "a reference cycle of ValueError, which only gc.collect() frees"
    assert holders_of(CPU.ledger, wanted) == dict.fromkeys(wanted, garbage)


def test_the_last_error_is_that_of_sys(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        fails(shown=True)
    except ValueError as error:
        monkeypatch.setattr(sys, "last_traceback", error.__traceback__, raising=False)
    assert holder(SERIALS[-1]) == "batch in fails(), whose frame the traceback of last_traceback in sys holds"
    monkeypatch.undo()


@pytest.mark.parametrize("ops", [1, 3])
def test_a_debugger_that_keeps_frames_only_puts_off_a_compiled_function(ops: int) -> None:
    @gradcore.compile
    def f(x: Any) -> Any:
        for _ in range(ops):
            x = x * 2
        return x

    frames = []

    def follow(frame: Any, event: str, arg: Any) -> None:
        frames.append((frame, frame.f_locals))

    x, before = gradcore.ones(3), sys.gettrace()
    sys.settrace(follow)
    try:
        for _ in range(40):
            f(x)
    finally:
        sys.settrace(before)
        frames.clear()
        # Those of calls that held one another.
        gc.collect()
    assert not f.programs and "a debugger, or what else sys.settrace() has set, may hold results" in f.explain()
    assert len(f.traces) < 12
    for _ in range(12):
        assert f(x).tolist() == [2.0 ** ops] * 3
    assert f.programs


def test_a_graph_at_the_end_of_a_cell_is_shown_as_text() -> None:
    graph = gradcore.graph(gradcore.ones(3, requires_grad=True).exp())
    assert repr(graph) == str(graph) and repr(graph).startswith("1 node keeps 12 bytes, and 0 of parameters\n#")


def test_of_what_one_line_has_made_the_largest_is_named(cell_runs: Run) -> None:
    # Each line that is typed is the first of its file.
    space = cell_runs("small = [gradcore.ones(n) for n in (10, 5000, 20)]")
    first, second, third = space.pop("small")
    assert "21,504 bytes  output of full in layer (root), " in (text := gradcore.memory_summary().partition("holder")[2])
    assert "held by second in " in text and "held by first in " not in text
    del first, second, third


@pytest.mark.skipif(sys.gettrace() is not None, reason="what traces already, such as coverage, would be ended by the debugger")
def test_a_debugger_that_stops_in_a_traced_function_shows_values() -> None:
    @gradcore.compile
    def f(x: Any) -> Any:
        y = x * 2
        z = y + 1
        return z

    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("c\np y\np y.sum().item()\nc\n"), stdout=out, nosigint=True, readrc=False)
    debugger.use_rawinput = False
    code = f.__wrapped__.__code__
    assert debugger.set_break(code.co_filename, code.co_firstlineno + 3) is None
    x = gradcore.ones(3)
    try:
        # Also if all of the program runs in a debugger, what the function itself reads is refused.
        assert debugger.runcall(f, x).tolist() == [3.0] * 3
        read = gradcore.compile(lambda x: x * x.sum().item())
        with pytest.raises(RuntimeError, match="reads a value"):
            pdb.Pdb(stdin=io.StringIO("c\n"), stdout=io.StringIO(), nosigint=True, readrc=False).runcall(read, x)
    finally:
        sys.settrace(None)
        debugger.clear_all_breaks()
        debugger.forget()
    assert "tensor([2., 2., 2.])" in out.getvalue() and "6.0" in out.getvalue(), out.getvalue()
    assert f(x * 2).tolist() == f(x * 2).tolist() == [5.0] * 3
    del debugger
    gc.collect()


@pytest.mark.skipif(sys.gettrace() is not None, reason="what traces already, such as coverage, would be ended by the debugger")
def test_a_function_with_a_breakpoint_stops_in_each_call() -> None:
    out = io.StringIO()

    @gradcore.compile
    def f(x: Any) -> Any:
        pdb.Pdb(stdin=io.StringIO("c\n"), stdout=out, nosigint=True, readrc=False).set_trace()
        return x + 1

    try:
        for _ in range(3):
            assert f(gradcore.ones(1)).item() == 2.0
    finally:
        sys.settrace(None)
        # The debugger has set itself in every call that runs.
        frame: Any = sys._getframe()
        while frame is not None:
            frame.f_trace, frame = None, frame.f_back
    # Behind the line of set_trace, or from Python 3.13 on at it.
    assert out.getvalue().count(")f()\n-> ") == 3, out.getvalue()
    where = f"{__file__}:{f.__wrapped__.__code__.co_firstlineno + 2}"
    assert f"{where} starts a debugger, which is to stop in each call" in f.explain()
    gc.collect()

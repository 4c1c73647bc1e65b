"""The search for holders runs no code of the program, changes nothing of what it meets, and names no others."""

from __future__ import annotations

import enum
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import _holders
from tests.host.memory.holding import CPU, fresh, holder

FOUND: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # A new one, for what was made before a test the collector does not see: it is frozen.
    monkeypatch.setattr(sys.modules[__name__], "FOUND", {})
    yield
    FOUND.clear()


def of(wrap: Callable[[Any], Any]) -> str:
    """The name of what holds a tensor that is wrapped so."""
    x = fresh()
    serial = x.storage.serial
    FOUND["here"] = wrap(x)
    del x
    return holder(serial)


def refuses(*_: Any) -> Any:
    raise AssertionError("code of the program has run")


class Items(list[Any]):
    __iter__ = __len__ = __getitem__ = refuses


class Row(tuple[Any, ...]):
    __iter__ = __len__ = __getitem__ = refuses


class Mapping(dict[Any, Any]):
    __iter__ = __len__ = __getitem__ = items = keys = values = refuses  # type: ignore[assignment]


class Empty:
    def __init__(self, x: Any) -> None:
        object.__setattr__(self, "x", x)

    __getattribute__ = __getattr__ = __eq__ = __repr__ = __len__ = __iter__ = __bool__ = refuses
    __class__ = property(refuses)  # type: ignore[assignment]
    __hash__ = object.__hash__


class NoDict:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x

    __dict__ = property(refuses)  # type: ignore[assignment]


class Asked(type):
    def __getattribute__(cls, name: str) -> Any:
        return refuses() if name in ("__dict__", "__mro__") else type.__getattribute__(cls, name)


class OfMeta(metaclass=Asked):
    def __init__(self, x: Any) -> None:
        self.x = x


class WithAttribute:
    answers = Empty(0)

    def __init__(self, x: Any) -> None:
        self.x = x


class Key:
    __eq__ = __repr__ = __format__ = __str__ = refuses
    __hash__ = object.__hash__


class Kind(enum.Enum):
    A = 1

    __repr__ = __format__ = __str__ = refuses


@pytest.mark.parametrize(("wrap", "path"), [
    (lambda x: Items([x]), "[0]"), (lambda x: Row((x,)), "[0]"), (lambda x: Mapping(a=x), "['a']"), (Empty, ".x"),
    (NoDict, ".x"), (OfMeta, ".x"), (WithAttribute, ".x"), (lambda x: {Key(): x}, "[...]"), (lambda x: {Kind.A: x}, "[...]"),
    # Keys that are no name.
    (lambda x: {10**5000: x}, "[...]"), (lambda x: {"a" * 1000: [x]}, "[...][0]"),
    (lambda x: {True: {None: x}}, "[True][None]"), (lambda x: {"mean in epoch": [x]}, "['mean in epoch'][0]"),
    (lambda x: {".edge[0]": [x]}, "['.edge[0]'][0]")])
def test_no_code_of_the_program_is_run(wrap: Callable[[Any], Any], path: str) -> None:
    assert of(wrap) == f"FOUND['here']{path} in {__name__}"


def test_a_lazy_layer_that_was_never_called_hinders_no_search() -> None:
    FOUND["lazy"] = gradcore.nn.LazyLinear(3)
    assert of(lambda x: x) == f"FOUND['here'] in {__name__}"


def test_a_tuple_that_is_being_filled_is_not_read() -> None:
    # It would end the process.
    program = """
import gradcore
def part(i):
    x = gradcore.ones(100)
    if i == 3:
        gradcore.memory_summary()
    return x
print(len(tuple(part(i) for i in range(5))))
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "5\n"


@pytest.mark.parametrize("install", ["settrace", "setprofile"])
def test_a_function_that_traces_leaves_variables_as_they_are(install: str) -> None:
    class Traces:
        __bool__ = refuses

        def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
            if frame.f_code is traced.__code__:
                names.append(holder(FOUND["x"].storage.serial))

    def traced(value: int) -> int:
        return value

    FOUND["x"] = fresh()
    names: list[str] = []
    before = getattr(sys, f"get{install[3:]}")()
    getattr(sys, install)(Traces())
    try:
        result = traced(3)
    finally:
        getattr(sys, install)(before)
    assert result == 3 and names and set(names) == {f"FOUND['x'] in {__name__}"}


def test_an_interrupt_leaves_no_tensor_in_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(holder: Any, ids: set[int]) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(_holders, "parts", interrupted)
    kept = [fresh()]
    alive = weakref.ref(kept[0])
    with pytest.raises(KeyboardInterrupt) as error:
        holder(kept[0].storage.serial)
    kept.clear()
    assert alive() is None
    del error


class Owner:
    def __init__(self, x: Any) -> None:
        self.x, self.me = x, self


def unseen(x: Any) -> Any:
    """What the collector does not look into."""
    box = np.empty(1, object)
    box[0] = x
    return box


def test_a_cycle_that_something_unseen_holds_is_not_said_to_be_garbage() -> None:
    assert of(lambda x: unseen(Owner(x))) == ""
    FOUND["here"][0].me = None


@pytest.mark.parametrize(("wrap", "kind"), [
    (Owner, "Owner"), (lambda x: Owner([{"a": (x,)}]), "Owner"), (lambda x: Owner(lambda: x), "Owner"),
    (lambda x: Owner(gradcore.nn.ParameterList([x])), "Owner"), (lambda x: [Owner(x) for _ in range(3)], "Owner")])
def test_garbage_is_said_to_be(wrap: Callable[[Any], Any], kind: str) -> None:
    gc.disable()
    try:
        of(wrap)
        serial = max(block.serial for block in CPU.ledger.live.values())
        FOUND.clear()
        assert holder(serial) == f"a reference cycle of {kind}, which only gc.collect() frees"
    finally:
        gc.enable()
        gc.collect()


def test_the_graph_of_a_views_base_is_that_of_the_view() -> None:
    kept = fresh().requires_grad_().exp()
    serial = kept.storage.serial
    FOUND["other"], FOUND["view"] = kept.cos(), kept.sin()[:10]
    del kept
    assert holder(serial) == f"the graph of FOUND['view'] in {__name__} and the graph of FOUND['other'] in {__name__}"


def test_an_exception_that_its_own_frame_holds_is_garbage() -> None:
    def fails() -> int:
        x = fresh()
        try:
            raise ValueError
        except ValueError as caught:
            error = caught
        assert error is not None
        return int(x.storage.serial)

    gc.disable()
    try:
        assert holder(fails()) == "a reference cycle of ValueError, which only gc.collect() frees"
    finally:
        gc.enable()
        gc.collect()


def test_two_names_of_which_one_begins_as_the_other() -> None:
    alpha = fresh()
    alphabet = alpha.detach()
    where = "in test_two_names_of_which_one_begins_as_the_other()"
    assert holder(alphabet.storage.serial) == f"alpha {where} and alphabet {where}"


def test_the_name_that_a_notebook_gives_a_result_is_not_the_first_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    FOUND["serial"] = (x := fresh()).storage.serial
    for name in ("_1", "result", "_3"):
        monkeypatch.setattr(module, name, x, raising=False)
    del x
    assert holder(FOUND["serial"]) == f"result in {__name__}"
    monkeypatch.delattr(module, "result")
    assert holder(FOUND["serial"]) == f"_3 in {__name__}"
    # The fixture keeps what it is to put back.
    monkeypatch.undo()


def test_functions_that_wait() -> None:
    class Pause:
        def __await__(self) -> Iterator[int]:
            yield 1

    async def computes() -> None:
        x = fresh()
        FOUND["serial"] = x.storage.serial
        await Pause()

    async def numbers() -> Any:
        await computes()
        yield 1

    waits = computes()
    waits.send(None)
    prefix = "test_functions_that_wait.<locals>."
    assert holder(FOUND["serial"]) == f"x in the coroutine {prefix}computes()"
    waits.close()
    number = numbers()
    ahead = number.asend(None)
    ahead.send(None)
    assert holder(FOUND["serial"]) == f"x in the coroutine {prefix}computes()"
    ahead.close()


def test_a_variable_of_another_thread() -> None:
    there, on = threading.Event(), threading.Event()

    def work() -> None:
        x = fresh()
        FOUND["serial"] = x.storage.serial
        there.set()
        on.wait()

    thread = threading.Thread(target=work)
    thread.start()
    there.wait()
    try:
        assert holder(FOUND["serial"]) == "x in test_a_variable_of_another_thread.<locals>.work()"
    finally:
        on.set()
        thread.join()


def test_a_tuple_that_another_thread_fills_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    there, on = threading.Event(), threading.Event()
    filled: list[Any] = []

    def parts() -> Iterator[Any]:
        yield FOUND["here"][0]
        there.set()
        on.wait()

    def look(holder: Any, ids: set[int]) -> Any:
        on.set()
        thread.join()
        return look_as_before(holder, ids)

    look_as_before = _holders.parts
    monkeypatch.setattr(_holders, "parts", look)
    FOUND["here"] = [fresh()]
    thread = threading.Thread(target=lambda: filled.append(tuple(parts())))
    thread.start()
    there.wait()
    try:
        assert holder(FOUND["here"][0].storage.serial) == f"FOUND['here'][0] in {__name__}"
        assert len(filled) == 1
    finally:
        on.set()
        thread.join()
    filled.clear()


def test_two_searches_at_a_time_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)

    begun: set[int] = set()

    def asked(kind: type) -> Any:
        # Of the kind of a holder. A function that is given the holder itself would be one for the other search.
        if threading.get_ident() not in begun:
            begun.add(threading.get_ident())
            both.wait()
        return mro(kind)

    mro = _holders.mro
    monkeypatch.setattr(_holders, "mro", asked)
    FOUND["here"] = [[[fresh()]]]
    alive = weakref.ref(FOUND["here"][0][0][0])
    serial = FOUND["here"][0][0][0].storage.serial
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(holder(serial))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [f"FOUND['here'][0][0][0] in {__name__}"] * 2
    FOUND.clear()
    assert alive() is None

"""Objects of Python's own classes and of C code, whose state no attribute shows that the user's code names."""

from __future__ import annotations

import asyncio
import configparser
import ctypes
import decimal
import functools
import gc
import io
import json
import logging
import mmap
import multiprocessing
import operator
import pickle
import queue
import re
import socket
import sqlite3
import sys
import threading
import weakref
from abc import ABC
from collections import UserDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

import gradcore

#: A function, and what changes its result between two calls.
Case = tuple[Callable[[Any], Any], Callable[[], Any]]


def a_config() -> Case:
    config = configparser.ConfigParser()
    config["training"] = {"scale": "2"}
    return lambda x: x * config.getfloat("training", "scale"), lambda: config.set("training", "scale", "3")


def a_section() -> Case:
    config = configparser.ConfigParser()
    config["training"] = {"scale": "2"}
    return lambda x: x * float(config["training"]["scale"]), lambda: config.set("training", "scale", "3")


def a_dict_of_a_class_of_the_users() -> Case:
    class Options(UserDict[str, int]):
        pass

    options = Options(scale=2)
    return lambda x: x * options["scale"], lambda: options.update(scale=3)


def the_size_of_a_queue() -> Case:
    waiting: queue.Queue[int] = queue.Queue()
    return lambda x: x * waiting.qsize(), lambda: waiting.put(1)


def the_size_of_a_queue_of_asyncio() -> Case:
    waiting: asyncio.Queue[int] = asyncio.Queue()
    return lambda x: x * waiting.qsize(), lambda: waiting.put_nowait(1)


def a_future() -> Case:
    future: Future[int] = Future()
    return lambda x: x * 2 if future.done() else x * 3, lambda: future.set_result(1)


def a_view_of_a_dict() -> Case:
    options = {"scale": 2}
    view = MappingProxyType(options)
    return lambda x: x * view["scale"], lambda: options.update(scale=3)


def all_of_a_view_of_a_dict() -> Case:
    options = {"scale": 2}
    view = MappingProxyType(options)
    return lambda x: x * sum(view.values()), lambda: options.update(other=3)


def a_number_of_ctypes() -> Case:
    number = ctypes.c_double(2)
    return lambda x: x * number.value, lambda: setattr(number, "value", 3.0)


def a_structure_of_ctypes() -> Case:
    class Pair(ctypes.Structure):
        _fields_ = [("first", ctypes.c_int), ("second", ctypes.c_int)]

    pair = Pair(2, 5)
    return lambda x: x * pair.first, lambda: setattr(pair, "first", 3)


def a_memoryview() -> Case:
    data = bytearray(b"\2\5")
    view = memoryview(data)
    return lambda x: x * view[0], lambda: operator.setitem(data, 0, 3)


def a_mapped_file() -> Case:
    mapped = mmap.mmap(-1, 8)
    return lambda x: x * mapped[0], lambda: operator.setitem(mapped, 0, 3)


def a_weak_reference() -> Case:
    class Thing:
        pass

    things = [Thing()]
    found = weakref.ref(things[0])
    return lambda x: x * 2 if found() is None else x * 3, things.clear


def a_property() -> Case:
    class Options:
        scale = property(lambda self: 2)

    options = Options()
    return lambda x: x * options.scale, lambda: setattr(Options, "scale", property(lambda self: 3))


def the_code_of_a_function() -> Case:
    def doubled(x: Any) -> Any:
        return x * 2

    def tripled(x: Any) -> Any:
        return x * 3

    return lambda x: doubled(x), lambda: setattr(doubled, "__code__", tripled.__code__)


def how_long_a_deque_may_get() -> Case:
    lines = {"last": deque([1], maxlen=2)}
    return lambda x: x * lines["last"].maxlen, lambda: lines.update(last=deque([1], maxlen=3))


def how_long_a_deque_of_objects_may_get() -> Case:
    line, lines = object(), SimpleNamespace(last=None)
    lines.last = deque([line], maxlen=2)
    return lambda x: x * lines.last.maxlen, lambda: setattr(lines, "last", deque([line], maxlen=3))


def which_attributes_there_are() -> Case:
    options = SimpleNamespace(scale=1)
    return lambda x: x * len([a for a in dir(options) if a[0] != "_"]), lambda: setattr(options, "other", 1)


GUARDED = [a_config, a_section, a_dict_of_a_class_of_the_users, the_size_of_a_queue, the_size_of_a_queue_of_asyncio, a_future,
           a_view_of_a_dict, all_of_a_view_of_a_dict, a_number_of_ctypes, a_structure_of_ctypes, a_memoryview, a_mapped_file,
           a_weak_reference, a_property, the_code_of_a_function, how_long_a_deque_may_get, how_long_a_deque_of_objects_may_get,
           which_attributes_there_are]


@pytest.mark.parametrize("case", GUARDED, ids=lambda case: case.__name__)
def test_a_change_is_seen(case: Callable[[], Case]) -> None:
    function, change = case()
    f, x = gradcore.compile(function), gradcore.ones(1)
    before = function(x).item()
    assert [f(x).item() for _ in range(3)] == [before] * 3 and len(f.traces) == 1
    change()
    after = function(x).item()
    assert after != before and [f(x).item() for _ in range(3)] == [after] * 3
    assert len(f.traces) == 2 and "cannot be replayed" not in f.traces[0]


def a_queue() -> Callable[[Any], Any]:
    waiting: queue.Queue[int] = queue.Queue()
    for k in range(5):
        waiting.put(k)
    return lambda x: x * waiting.get()


def a_simple_queue() -> Callable[[Any], Any]:
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for k in range(5):
        waiting.put(k)
    return lambda x: x * waiting.get()


def a_file_in_memory() -> Callable[[Any], Any]:
    file = io.StringIO()
    return lambda x: x * (file.write("a") + len(file.getvalue()))


def a_database() -> Callable[[Any], Any]:
    database = sqlite3.connect(":memory:")
    database.execute("create table counts (k int)")

    def function(x: Any) -> Any:
        database.execute("insert into counts values (1)")
        return x * database.execute("select count(*) from counts").fetchone()[0]

    return function


def a_number_that_processes_share() -> Callable[[Any], Any]:
    number = multiprocessing.Value("d", 2.0)
    return lambda x: x * number.value


def an_attrgetter() -> Callable[[Any], Any]:
    scale, options = operator.attrgetter("scale"), SimpleNamespace(scale=2)
    return lambda x: x * scale(options)


def a_property_that_c_code_reads() -> Callable[[Any], Any]:
    class Options:
        value = 2.0
        scale = property(operator.attrgetter("value"))

    options = Options()
    return lambda x: x * options.scale


def another_name_of_getattr() -> Callable[[Any], Any]:
    get, options = getattr, SimpleNamespace(scale=2)
    return lambda x: x * get(options, "scale")


def getattr_in_a_partial() -> Callable[[Any], Any]:
    get = functools.partial(getattr, SimpleNamespace(scale=2))
    return lambda x: x * get("scale")


def a_bound_getattribute() -> Callable[[Any], Any]:
    get = SimpleNamespace(scale=2).__getattribute__
    return lambda x: x * get("scale")


def a_weak_proxy() -> Callable[[Any], Any]:
    proxy = weakref.proxy(KEPT)
    return lambda x: x * proxy.scale


def a_variable_in_a_cell() -> Callable[[Any], Any]:
    number = 2

    def function(x: Any) -> Any:
        return x * number

    return lambda x: x * function.__closure__[0].cell_contents


def a_pickled_object() -> Callable[[Any], Any]:
    return lambda x: x * pickle.dumps(SimpleNamespace(scale=2))[-3]


KEPT = type("Options", (), {"scale": 2})()

REFUSED = {
    another_name_of_getattr: "the variable get of <lambda>'s closure, by which it may read anything: call getattr by that",
    getattr_in_a_partial: "refers to func of a partial, by which it may read anything: call getattr by that name",
    a_bound_getattribute: "by which it may read anything: call __getattribute__ by that name",
    a_weak_proxy: "of type ProxyType, whose state no guard can see",
    a_variable_in_a_cell: "<lambda>() asks for __closure__, where no guard sees what it finds",
    a_queue: "the function changes what it reads: queue of a Queue is deque([1, 2, 3, 4]) and was",
    a_simple_queue: "calls get() of _queue, which may give something else each time",
    a_file_in_memory: "calls getvalue() of a file",
    a_pickled_object: "calls dumps() of _pickle",
    a_database: "calls execute() of sqlite3",
    a_number_that_processes_share: "calls acquire() of _multiprocessing",
    a_property_that_c_code_reads: "refers to fget of a property, of type attrgetter, whose state no guard can see",
    an_attrgetter: "refers to the variable scale of <lambda>'s closure, of type attrgetter, whose state no guard can see",
}


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.__name__)
def test_what_cannot_be_known_is_not_replayed(case: Callable[[], Callable[[Any], Any]]) -> None:
    f, other, x = gradcore.compile(case()), case(), gradcore.ones(1)
    assert [f(x).item() for _ in range(4)] == [other(x).item() for _ in range(4)]
    assert not f.programs and REFUSED[case] in f.traces[0]


def test_what_a_socket_has_received_is_not_replayed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(bytes(range(1, 9)))
        f = gradcore.compile(lambda x: x * ours.recv(1)[0])
        assert [f(gradcore.ones(1)).item() for _ in range(4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("asks", [gc.isenabled, gc.get_count, sys.getrecursionlimit, threading.get_ident])
def test_what_the_interpreter_is_asked_is_not_replayed(asks: Callable[[], Any]) -> None:
    f = gradcore.compile(lambda x: x * 2 if asks() else x * 3)
    f(gradcore.ones(1))
    assert not f.programs and f"calls {asks.__name__}() of " in f.traces[0]


def test_an_argument_of_c_code_is_not_replayed() -> None:
    f = gradcore.compile(lambda x, waiting: x * 2)
    for waiting in (queue.SimpleQueue(), sqlite3.connect(":memory:")):
        f(gradcore.ones(1), waiting)
        assert f"an argument is a {type(waiting).__name__}, whose state no guard can see" in f.traces[-1]
    waiting.close()
    assert not f.programs


def test_a_class_that_keeps_nothing_makes_no_attribute_count() -> None:
    class Trainer(ABC):  # noqa: B024
        def __init__(self) -> None:
            self.scale, self.steps = 2, 0

        def step(self, x: Any) -> Any:
            return x * self.scale

    trainer = Trainer()
    f = gradcore.compile(trainer.step)
    for trainer.steps in range(3):
        assert f(gradcore.ones(1)).item() == 2
    assert len(f.traces) == 1


def test_what_has_effects_alone_or_never_changes_is_no_reason() -> None:
    lock, log, words = threading.Lock(), logging.getLogger("gradcore.test"), re.compile(r"\w+")
    third, sink, options = decimal.Decimal(3), io.StringIO(), SimpleNamespace(scale=2, seen=0)

    def function(x: Any) -> Any:
        with lock:
            log.info("a step of %s", json.dumps({"scale": options.scale}))
            print("a step", file=sink)
            return x * float(third) * len(words.findall("two words")) * options.scale

    f = gradcore.compile(function)
    for seen in range(3):
        options.seen = seen
        assert f(gradcore.ones(1)).item() == 12
    assert len(f.traces) == len(f.programs) == 1 and sink.getvalue() == "a step\n"


@pytest.mark.parametrize("seeds", [lambda generator: gradcore.manual_seed(0), lambda generator: generator.manual_seed(0),
                                   lambda generator: generator.seed()])
def test_a_seed_that_is_set_inside_is_named(seeds: Any) -> None:
    generator = gradcore.Generator()

    @gradcore.compile
    def noisy(x: Any) -> Any:
        seeds(generator)
        return x + gradcore.randn(2)

    for _ in range(2):
        with pytest.raises(gradcore.errors.TraceError, match=r"hidden_state.py:\d+ sets the seed of a generator \(manual_seed"):
            noisy(gradcore.ones(2))

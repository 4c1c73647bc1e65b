"""Records: sites, typed forms, and comparisons of two runs of one program."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any
from weakref import ref

import numpy as np
import pytest

import gradcore
from gradcore import events
from gradcore.events import (
    ALLOC,
    DROP,
    FREE,
    KEEP,
    LAUNCH,
    MARK,
    READ,
    RESERVE,
    RETAG,
    UNRESERVE,
    UPLOAD,
    VIEW,
    Alloc,
    Drop,
    Export,
    Free,
    Invocation,
    Keep,
    Launch,
    Mark,
    Read,
    Reserve,
    Retag,
    Site,
    Tag,
    Unreserve,
    Upload,
    View,
    typed,
)
from gradcore.spec import TensorSpec
from tests.logs import normalized

SPEC = TensorSpec.of((2,), "float32")
SITE = Site("/home/somebody/train.py", 7, "main")
TAG = Tag("add", "", "forward", "output", SITE, None, SPEC)
CALL = Invocation("add", (SPEC, SPEC), (SPEC,), (), 0, ())

PAIRS: list[tuple[tuple[Any, ...], Any]] = [
    ((RESERVE, 3, 100), Reserve(3, 100)), ((UNRESERVE, 3, 100), Unreserve(3, 100)),
    ((ALLOC, 9, 3, 512, 10, 512, 1, TAG, 4), Alloc(9, 3, 512, 10, 512, 1, TAG, 4)), ((FREE, 9), Free(9)),
    ((KEEP, 9, 4, "x"), Keep(9, 4, "x")), ((DROP, 9, 4, events.CONSUMED), Drop(9, 4, "consumed")),
    ((DROP, 9, 4, events.DIED), Drop(9, 4, "graph died")),
    ((LAUNCH, CALL, TAG, 4, (9, 0), (11,), 123), Launch(CALL, TAG, 4, (9, 0), (11,), 123)), ((RETAG, 9, TAG), Retag(9, TAG)),
    ((MARK, "begin", "backward", 5), Mark("begin", "backward", 5)), ((VIEW, CALL, TAG, 4, 9), View(CALL, TAG, 4, 9)),
    ((UPLOAD, 9, 8), Upload(9, 8)), ((READ, 9, 8), Read(9, 8))]


@pytest.mark.parametrize(("raw", "record"), PAIRS, ids=lambda p: type(p).__name__ if hasattr(p, "_fields") else "")
def test_records_have_a_name(raw: Any, record: Any) -> None:
    assert typed(raw) == record and type(typed(raw)) is type(record)


def test_every_kind_is_there() -> None:
    assert {raw[0] for raw, _ in PAIRS} == set(range(12))


def test_equal_sites_are_one_object() -> None:
    site = Site("/home/somebody/train.py", 7, "main")
    assert site is SITE and hash(site) == hash(SITE) and site != Site("/home/somebody/train.py", 8, "main")
    called = site.called_by([SITE])
    assert called is Site("/home/somebody/train.py", 7, "main", (SITE,)) is not site and called.called_by(()) is site
    assert pickle.loads(pickle.dumps(called)) is copy.deepcopy(called) is called
    assert repr(called) == f"Site(file='/home/somebody/train.py', line=7, function='main', callers=({SITE!r},))"


def test_equal_sites_of_several_threads_are_one_object() -> None:
    found: list[list[Site]] = []
    start = threading.Barrier(4)

    def make() -> None:
        start.wait()
        found.append([Site("/threads.py", line, "f") for line in range(3000)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4 and all(len({id(site) for site in same}) == 1 for same in zip(*found, strict=True))


def test_a_site_that_nothing_refers_to_is_freed() -> None:
    site = ref(Site("/freed.py", 1, "f"))
    assert site() is None


def test_numbers_count_from_one_in_order_of_appearance() -> None:
    raws = [raw for raw, _ in PAIRS]
    shifted = [(RESERVE, 5, 100), (UNRESERVE, 5, 100), (ALLOC, 70, 5, 512, 10, 512, 2, TAG, 33), (FREE, 70),
               (KEEP, 70, 33, "x"), (DROP, 70, 33, 0), (DROP, 70, 33, 1), (LAUNCH, CALL, TAG, 33, (70, 0), (80,), 999),
               (RETAG, 70, TAG), (MARK, "begin", "backward", 77), (VIEW, CALL, TAG, 33, 70), (UPLOAD, 70, 8), (READ, 70, 8)]
    assert normalized(raws) == normalized(shifted)
    assert normalized(raws)[2] == Alloc(1, 1, 512, 10, 512, 0, TAG, 1)
    assert normalized(raws)[7] == Launch(CALL, TAG, 1, (1, 0), (2,), 0)


def test_a_different_program_differs() -> None:
    for other in ((ALLOC, 9, 3, 512, 11, 512, 1, TAG, 4), (ALLOC, 9, 3, 1024, 10, 512, 1, TAG, 4)):
        assert normalized([other]) != normalized([(ALLOC, 9, 3, 512, 10, 512, 1, TAG, 4)])
    assert normalized([(FREE, 9), (FREE, 8)]) == normalized([(FREE, 1), (FREE, 2)]) != normalized([(FREE, 9), (FREE, 9)])


def test_lines_can_be_left_out() -> None:
    (record,) = normalized([(RETAG, 9, TAG)], lines=False)
    assert isinstance(record, Retag) and record.tag.site == Site("train.py", 0, "main")
    called, shown = (TAG._replace(site=Site(f"{folder}b.py", n and 1, "f"), caller=Site("main.py", n and 2, "g"),
                                  export=Export("numpy()", Site(f"{folder}d.py", n and 3, "h")))
                     for folder, n in (("/a/", 1), ("", 0)))
    raws = [(ALLOC, 9, 3, 512, 10, 512, 1, called, 4), (RETAG, 9, called), (VIEW, CALL, called, 4, 9),
            (LAUNCH, CALL, called, 4, (9,), (), 7)]
    for lines, tag in ((True, called), (False, shown)):
        assert normalized(raws, lines=lines) == [
            Alloc(1, 1, 512, 10, 512, 0, tag, 1), Retag(1, tag), View(CALL, tag, 1, 1), Launch(CALL, tag, 1, (1,), (), 0)]


def _plain(value: Any) -> bool:
    """Is this a number, a string, a spec, a site, a type, or a tuple of such?"""
    return isinstance(value, (int, float, str, type(None), TensorSpec, Site, type, np.dtype)) or (
        isinstance(value, tuple) and all(map(_plain, value)))


def test_a_log_holds_no_array_and_no_storage() -> None:
    ledger = gradcore.device("cpu").ledger
    log = ledger.begin_log()
    x = gradcore.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    loss = (gradcore.cat([x, x.t()]).softmax(1)[0] * 2.0).sum()
    loss.backward()
    assert loss.item() == 2.0
    with gradcore.no_grad():
        x -= 0.1
    ledger.end_log()
    assert {r[0] for r in log} >= {ALLOC, FREE, KEEP, DROP, LAUNCH, RETAG, MARK, VIEW, UPLOAD, READ}
    assert all(_plain(r) for r in log)

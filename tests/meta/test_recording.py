"""A log as plain data: exact round trips, and errors for damaged files."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import folds, nn
from gradcore.events import Alloc, Free, Invocation, Keep, Launch, Mark, Record, Retag, Site, Tag
from gradcore.report.built import build_report
from gradcore.report.packed import KINDS, pack, unpack
from gradcore.report.recording import Recording
from gradcore.report.step import PoolFigures, load_report
from gradcore.spec import TensorSpec
from tests.conftest import raises
from tests.meta.test_events import PAIRS

SPEC = TensorSpec.of((2, 3), "float32")
VIEW = TensorSpec.strided((3, 2), "int64", (1, 3), 1)
HERE = Site("/home/somebody/train.py", 7, "main")
TAG = Tag("add", "0", "forward", "output", HERE, None, SPEC)
BACK = Tag("add", "0", "backward", "temporary", HERE, Site("/x.py", 1, "<module>"), None)


def through_json(data: Any) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


def recorded() -> gradcore.step:
    """A step on the meta device with every kind of record of a training step."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3)).to("meta")
    optimizer = gradcore.optim.Adam(model.parameters())
    for _ in range(2):
        with gradcore.step(batch_size=4, device="meta") as step:
            x = gradcore.tensor(np.zeros((4, 6), np.float32), device="meta")
            y = gradcore.tensor(np.zeros(4, np.int64), device="meta")
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x).t().t(), y).backward()
            optimizer.step()
    return step


def test_every_kind_comes_back() -> None:
    records: list[Record] = [
        Alloc(9, 3, 512, 10, 512, 1, TAG, 4), *(r for _, r in PAIRS if not isinstance(r, (Alloc, Free))),
        Retag(9, BACK), Free(9)]
    assert {type(r) for r in records} == set(KINDS.values())
    back = unpack(through_json(pack(records)))
    assert back == records and [type(r) for r in back] == [type(r) for r in records]


def test_attributes_come_back_with_their_types() -> None:
    attrs = (("shape", (-1, 2)), ("dtype", np.dtype("float16")), ("eps", 1e-5), ("top", math.inf), ("whole", 2), ("flag", True),
             ("none", None), ("text", "mean"), ("nested", ((1, 2.0), (False,))), ("layout", VIEW))
    call = Invocation("op", (SPEC, float, int, bool, type(None), VIEW), (VIEW,), (("mean", SPEC),), 24, attrs)
    launch, = unpack(through_json(pack([Launch(call, BACK, 1, (3, 0), (4,), 5)])))
    assert isinstance(launch, Launch)
    assert repr(launch.invocation) == repr(call) and launch.invocation.inputs[0] is SPEC and launch.invocation.inputs[5] is VIEW
    odd = Invocation("op", (), (), (), 0, (("fn", object), ("low", -math.inf)))
    launch, = unpack(through_json(pack([Launch(odd, BACK, 1, (), (), 5)])))
    assert isinstance(launch, Launch) and launch.invocation.attrs == (("fn", repr(object)), ("low", -math.inf))


def test_a_step_comes_back_with_its_report() -> None:
    step = recorded()
    recording = step.recording
    assert recording.records == tuple(step.log) and recording.report is step.report
    back = Recording.from_dict(through_json(recording.to_dict()))
    assert back == recording
    folded = build_report(back.records, device="meta", batch_size=4, pool=recording.report.pool)
    assert folded.by_layer == recording.report.by_layer and folded.kept == recording.report.kept


def test_strides_of_dimensions_of_one_come_back() -> None:
    # They carry no information, and differ between views and other tensors.
    with gradcore.step() as step:
        gradcore.ones(())[None].expand(1, 1)
        gradcore.ones(1, 3).t().unsqueeze(0)
    recording = step.recording
    assert Recording.from_dict(through_json(recording.to_dict())) == recording


def test_tables_hold_each_value_once() -> None:
    data = pack(recorded().log)
    for name in ("tags", "invocations", "sites", "specs", "strings"):
        rows = [json.dumps(row) for row in data[name]]
        assert len(set(rows)) == len(rows) > 0
    text = json.dumps(data, separators=(",", ":"))
    assert text.count(json.dumps(__file__)) == 1


def test_an_empty_log() -> None:
    assert unpack(through_json(pack([]))) == []


BASE: list[Record] = [
    Mark("begin", "step", 1), Alloc(1, 0, 0, 24, 512, 0, TAG, 1), Launch(Invocation(
        "add", (SPEC, VIEW, float), (SPEC,), (), 0, (("dim", 0), ("dtype", SPEC.dtype))), TAG, 1, (1, 0), (1,), 2),
    Keep(1, 1, "x"), Retag(1, BACK), Free(1)]


def damaged(path: str, value: Any) -> dict[str, Any]:
    """The packed log with one thing changed; a path such as ``columns.A.node``."""
    data = through_json(pack(BASE))
    *into, last = path.split(".")
    at: Any = data
    for key in into:
        at = at[int(key)] if isinstance(at, list) else at[key]
    at[int(last) if isinstance(at, list) else last] = value
    return data


@pytest.mark.parametrize(("path", "value", "words"), [
    ("version", 2, "expected a log of version 1, but got 2"), ("kinds", "MALKTZ", "unknown kinds of record ['Z']"),
    ("kinds", "MALKTFF", "column serial of Free should have 2 rows, but has 1"), ("kinds", 7, "expected a string of kinds"),
    ("kinds", "MALFTK", "record 4 names buffer 1, which is not live"), ("columns.A.tag", [99], "an index below 2"),
    ("columns.A.tag", [-1], "an index below"), ("columns.A.tag", [True], "an index below"),
    ("columns.A.serial", [1, 2], "should have 1 rows, but has 2"), ("columns.A.serial", [1.5], "an int of 64 bits"),
    ("columns.A.serial", [True], "an int of 64 bits"), ("columns.A.offset", [1 << 70], "an int of 64 bits"),
    ("columns.A.requested", [-1], "is not an allocation"), ("columns.A.requested", [513], "is not an allocation"),
    ("columns.A", {}, "'serial'"), ("columns", {}, "not a log of version 1"), ("columns.L.inputs", [7], "a list of serials"),
    ("columns.L.inputs", [["7"]], "an int of 64 bits"), ("columns.F.serial", [2], "names buffer 2, which is not live"),
    ("strings.0", 7, "expected a string"), ("strings", None, "expected a list of strings"),
    ("sites.0.1", "7", "an int of 64 bits"), ("sites.0", [], "not a log of version 1"), ("tags.0.6", 99, "an index below"),
    ("tags.0.0", None, "an index below"), ("specs.0.0", [-1], "invalid shape"),
    ("specs.0.0", [1 << 40, 1 << 40], "invalid shape"), ("specs.0.1", "V1000000000", "unknown dtype"),
    ("specs.0.1", "O", "unknown dtype"), ("specs.0.1", ["f4"], "unknown dtype"), ("specs.1.2", [1], "expected 2 strides"),
    ("invocations.0.1", [{"spec": 99}], "an index below"), ("invocations.0.1", [{"eval": "1"}], "an input or an attribute"),
    ("invocations.0.1", [{"type": "object"}], "not a log"), ("invocations.0.5", [["x", {"float": "1"}]], "not a log"),
    ("invocations.0.5", [["x", {}]], "ValueError"), ("invocations.0.5", [["x"]], "ValueError")])
def test_damage_is_refused(path: str, value: Any, words: str) -> None:
    assert unpack(damaged("version", 1)) == BASE
    with raises(ValueError, *([] if words == "ValueError" else [words])):
        unpack(damaged(path, value))


def test_nesting_is_refused() -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    with raises(ValueError, "RecursionError"):
        unpack(damaged("invocations.0.5", [["x", deep]]))


def places(at: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in nested data: a list or dict, and the index or key in it."""
    for key, value in list(at.items() if isinstance(at, dict) else enumerate(at)):
        yield at, key
        if isinstance(value, (dict, list)):
            yield from places(value)


def test_random_damage_is_refused_or_harmless() -> None:
    """Whatever a value is replaced by, the result is records that can be folded, or ValueError."""
    data = through_json(pack(recorded().log))
    chance, refused = random.Random(0), 0
    for at, key in chance.sample(list(places(data)), 400):
        was = at[key]
        for value in (None, -1, 1 << 65, "x", [], {}, 0.5):
            at[key] = copy.copy(value)
            try:
                records = unpack(data)
            except ValueError:
                refused += 1
            else:
                folds.peak(records)
                folds.live_at(records, len(records))
                folds.residuals(records)
                build_report(records, device="meta", batch_size=None, pool=PoolFigures(0, 0, 0, 0, 0, 0))
        at[key] = was
    assert refused > 1000


@pytest.mark.parametrize("data", [None, [], {}, {"kind": "recording"}, {"kind": "recording", "report": {}, "log": {}}, "x"])
def test_what_is_no_recording(data: Any) -> None:
    with raises(ValueError, "expected ", ", but got "):
        Recording.from_dict(data)


def test_a_report_comes_back_and_damage_is_named() -> None:
    report = recorded().report
    data = through_json(report.to_dict())
    assert load_report(data) == report == load_report(report.to_dict())
    for name, absent in (("driver", None), ("left", ()), ("growth", None), ("pinned", None)):
        assert getattr(load_report({k: v for k, v in data.items() if k != name}), name) == absent
    for at, key in places(data):
        was = at[key]
        at[key] = {"what": ["is", "this"]}
        expected = "of version 1, but got" if key == "version" else "has an unknown field" if key == "peak" else "Report."
        with raises(ValueError, expected):
            load_report(data)
        at[key] = was
    with raises(ValueError, "StepReport.peak has an unknown field 'x', no field 'op'"):
        load_report({**data, "peak": {"x": 1, **{k: v for k, v in data["peak"].items() if k != "op"}}})
    with raises(ValueError, "StepReport.top[0].shape[0] should be int, but is '8'"):
        load_report({**data, "top": [{**data["top"][0], "shape": ["8"]}]})


def test_rows_as_the_schema_has_them() -> None:
    # The type of the attribute is none that JSON has a form for.
    call = Invocation("add", (SPEC, None), (VIEW,), (("mask", SPEC),), 8, (("of", range(2)),))
    records: list[Record] = [
        Alloc(9, 3, 512, 10, 512, 1, TAG, 4), Launch(call, TAG, 4, (9, 0), (11,), 5), Mark("begin", "step", 6)]
    data = pack(records)
    (op, *invocation), = data["invocations"]
    assert data["strings"][op] == "add"
    specs = [data["specs"].index(row) for row in ([[2, 3], "float32"], [[3, 2], "int64", [1, 3], 1])]
    assert invocation == [[{"spec": specs[0]}, None], [specs[1]], [["mask", specs[0]]], 8, [["of", {"repr": "range(0, 2)"}]]]
    assert data["kinds"] == "ALM" and data["columns"] == {
        "A": {"serial": [9], "segment": [3], "offset": [512], "requested": [10], "allocated": [512], "stream": [1], "tag": [0],
              "node": [4]},
        "L": {"invocation": [0], "tag": [0], "node": [4], "inputs": [[9, 0]], "outputs": [[11]], "time": [5]},
        "M": {"what": [data["strings"].index("begin")], "label": [data["strings"].index("step")], "time": [6]}}
    assert unpack(through_json(data))[1] == records[1]._replace(  # type: ignore[union-attr]
        invocation=call._replace(attrs=(("of", "range(0, 2)"),)))


def test_other_data_than_a_log_or_a_recording() -> None:
    with raises(ValueError, "expected a log of version 1, but got 'list'"):
        unpack([])  # type: ignore[arg-type]
    for data in ({**recorded().recording.to_dict(), "kind": "run"}, {}, []):
        with raises(ValueError, "expected a recording, but got"):
            Recording.from_dict(data)  # type: ignore[arg-type]


def test_the_limits_of_what_a_log_may_say() -> None:
    first = Alloc(9, 3, 512, 10, 512, 1, TAG, 4)
    good = pack([first, Launch(Invocation("add", (SPEC,), (SPEC,), (), 0, ()), TAG, 4, (), (), 5)])

    def changed(place: str, key: object, value: object) -> list[Record]:
        data = copy.deepcopy(good)
        inner: Any = data[place]
        for part in (key if isinstance(key, tuple) else (key,))[:-1]:
            inner = inner[part]
        inner[key[-1] if isinstance(key, tuple) else key] = value
        return unpack(data)

    limit, shape = 1 << 63, (0, 0)
    for segment in (-limit, limit - 1):
        assert changed("columns", ("A", "segment", 0), segment)[0] == first._replace(segment=segment)
    for good_shape in ([1] * 64, [0, 3], [limit // 2]):
        record = changed("specs", shape, good_shape)[0]
        assert isinstance(record, Alloc) and record.tag.spec == TensorSpec.of(tuple(good_shape), "float32")
    for place, key, value, words in [
            ("columns", ("A", "segment", 0), limit, "expected an int of 64 bits"),
            ("columns", ("A", "segment", 0), -limit - 1, "expected an int of 64 bits"),
            ("columns", ("A", "offset", 0), -1, "record 0 is not an allocation"),
            ("columns", ("A", "tag", 0), 1, "expected an index below 1, but got 1"),
            ("specs", shape, [1] * 65, "invalid shape"), ("specs", shape, [2, limit // 2], "invalid shape"),
            ("specs", shape, [-1], "invalid shape"),
            ("invocations", (0, 1, 0), {"spec": 0, "float": "inf"}, "expected an input or an attribute")]:
        with raises(ValueError, words):
            changed(place, key, value)
    with raises(ValueError, "record 1 is not an allocation"):
        unpack(pack([first, first]))

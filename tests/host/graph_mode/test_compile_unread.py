"""Parts of arguments that a function never reads may differ from call to call; all others are compared."""

# ruff: noqa: RUF059, F841

from __future__ import annotations

from collections import OrderedDict, namedtuple
from types import FunctionType
from typing import Any

import pytest

import gradcore

Pair = namedtuple("Pair", "x i")
kept: Any = None


def unpacked(batch: Any) -> Any:
    x, y, i = batch
    return x * y


def unpacked_on_one_line(batch: Any) -> Any:
    x, y, i = batch; return x * y  # noqa: E702


def with_underscores(batch: Any) -> Any:
    x, _, _ = batch
    return x * 2


def captured(batch: Any) -> Any:
    x, y, i = batch
    return (lambda: x * y)()


def beside_an_attribute(batch: Any) -> Any:
    x, y, shape = batch
    return x * y.reshape(y.shape)


def indexed(batch: Any) -> Any:
    return batch[0] * batch[-2]


def both(batch: Any) -> Any:
    x, _, _ = batch
    return x * batch[1]


def twice(batch: Any) -> Any:
    x, _, i = batch
    _, y, i = batch
    return x * y


@pytest.mark.parametrize("kind", [tuple, list])
@pytest.mark.parametrize("f", [unpacked, unpacked_on_one_line, with_underscores, captured, beside_an_attribute, indexed, both,
                               twice])
def test_what_is_not_read_of_a_batch_may_differ(f: Any, kind: Any) -> None:
    compiled = gradcore.compile(f)
    for k, i in enumerate((3, 4, None, "five", [6, "six"], {"seven": (7.0, None)}, b"8", 0.0, -0.0, True)):
        batch = kind((gradcore.full((2,), float(k)), gradcore.ones(2), i))
        assert compiled(batch).tolist() == f(batch).tolist()
    assert len(compiled.traces) == 1, compiled.explain()


def of_dict(batch: Any) -> Any:
    return batch["x"] * batch["scale"]


def of_dict_by_a_name_like_it(batch: Any) -> Any:
    batch["x"], "batch"
    return batch["x"] * batch["scale"]


@pytest.mark.parametrize("f", [of_dict, of_dict_by_a_name_like_it])
def test_what_is_not_read_of_a_dict_may_differ_and_what_is_read_may_not(f: Any) -> None:
    compiled = gradcore.compile(f)
    for k in range(5):
        batch = {"x": gradcore.ones(2), "scale": 2.0, "name": [f"a{k}"], "index": k, "more": {"of": k}}
        assert compiled(batch).tolist() == compiled(batch=batch).tolist() == [2.0, 2.0]
    assert len(compiled.traces) == 2, compiled.explain()
    assert compiled({**batch, "scale": 3.0}).tolist() == [3.0, 3.0]
    assert compiled({"x": gradcore.ones(2), "scale": 2.0}).tolist() == [2.0, 2.0]
    assert len(compiled.traces) == 4


def test_a_part_that_holds_a_tensor_is_compared() -> None:
    compiled = gradcore.compile(unpacked)
    for n in (1, 2, 2, 3):
        assert compiled((gradcore.ones(2), gradcore.ones(2), [gradcore.ones(n)])).tolist() == [1.0, 1.0]
    assert len(compiled.traces) == 3
    x = gradcore.ones(2)
    for batch in ((x, x, 1), (x, gradcore.ones(2), 1), (x, x, 2)):
        assert compiled(batch).tolist() == [1.0, 1.0]
    assert len(compiled.traces) == 5


def passed_on(batch: Any) -> Any:
    x, y, i = batch
    return x * of_index(batch)


def of_index(batch: Any) -> Any:
    return batch[2]


def reassigned(batch: Any) -> Any:
    x, y, i = batch
    batch = i
    return x * batch


def by_locals(batch: Any) -> Any:
    x, y, i = batch
    return x * locals()["i"]


def by_eval(batch: Any) -> Any:
    x, y, i = batch
    return x * eval("i")


def iterated(batch: Any) -> Any:
    x, y, _ = batch
    return x * sum([v for v in batch if isinstance(v, (int, float))])


def in_a_closure(batch: Any) -> Any:
    x, y, i = batch
    return (lambda: x * batch[2])()


def part_in_a_closure(batch: Any) -> Any:
    x, y, i = batch
    return (lambda: x * i)()


def starred(batch: Any) -> Any:
    x, y, *i = batch
    return x * i[0]


def by_a_variable(batch: Any) -> Any:
    x, k = batch[0], 2
    return x * batch[k]


def of_a_slice(batch: Any) -> Any:
    return batch[0] * batch[2:][0]


def another_name(batch: Any) -> Any:
    same = batch
    x, y, i = batch
    return x * same[2]


def to_a_global(batch: Any) -> Any:
    global kept
    x, y, kept = batch
    return x * kept


def chosen(batch: Any, other: Any = None) -> Any:
    x, y, _ = batch if other is None else other
    return x * (other or batch)[2]


def in_a_comprehension(batch: Any) -> Any:
    x, y, i = batch
    return sum([x * i for _ in range(1)])


def deleted(batch: Any) -> Any:
    x, y, i = batch
    z = x * i
    del i
    return z


def nested(batch: Any) -> Any:
    x, (y, i) = batch[0], batch[1:]
    return x * i


def matched(batch: Any) -> Any:
    match batch:
        case (x, _, i):
            return x * i


def in_a_loop(batch: Any) -> Any:
    i = 0
    for _ in range(2):
        x, y, _ = batch
        z = x * i
        x, y, i = batch
    return z


def swapped(batch: Any) -> Any:
    i, (x, y, _) = batch[-1], batch
    return x * i


def caught(batch: Any) -> Any:
    try:
        x, y = batch
    except ValueError:
        x, y, i = batch
        return x * i
    return x


@pytest.mark.parametrize("f", [
    passed_on, reassigned, by_locals, by_eval, iterated, in_a_closure, part_in_a_closure, starred, by_a_variable, of_a_slice,
    another_name, to_a_global, chosen, in_a_comprehension, deleted, nested, matched, in_a_loop, swapped, caught])
def test_what_may_be_read_is_compared(f: Any) -> None:
    compiled = gradcore.compile(f, max_programs=20)
    for i in (2, 3, 3, 2.5, 4):
        assert compiled((gradcore.ones(2), gradcore.ones(2), i)).tolist() == [i, i]


def test_how_many_parts_there_are_and_in_what_is_compared() -> None:
    def counted(batch: Any) -> Any:
        try:
            x, i = batch
        except ValueError:
            return batch[0] * 2
        return x * 3

    compiled, x = gradcore.compile(counted), gradcore.ones(1)
    for batch, found in (((x, 1), 3), ((x, 2), 3), ([x, 2], 3), ((x, 2, 3), 2), ((x, 3, 3), 2), (Pair(x, 5), 3)):
        assert compiled(batch).item() == found
    # Of three parts the one before the last may be that of two.
    assert len(compiled.traces) == 5, compiled.explain()


def test_containers_of_other_kinds_are_compared_as_a_whole() -> None:
    class Tuple(tuple):
        def __getitem__(self, k: Any) -> Any:
            return super().__getitem__(k) if k else super().__getitem__(0) * super().__getitem__(1)

    compiled = gradcore.compile(lambda batch: batch[0] * 1, max_programs=20)
    for k in (1.0, 2.0, 3.0):
        assert compiled(Tuple((gradcore.ones(1), k))).item() == k
    compiled = gradcore.compile(lambda batch: batch["x"] * 1)
    for k in range(3):
        assert compiled(OrderedDict(x=gradcore.ones(1), k=k)).item() == 1.0
    assert len(compiled.traces) == 3


def test_a_list_that_the_function_changes_is_refused_although_it_reads_no_part_of_it() -> None:
    names = ["a"]

    def changing(batch: Any) -> Any:
        x, i = batch
        names.append("b")
        return x * 2

    compiled = gradcore.compile(changing)
    for k in range(3):
        compiled((gradcore.ones(1), names))
        assert len(names) == k + 2
    assert not compiled.programs


def test_a_function_that_is_given_other_code_is_looked_at_again() -> None:
    def f(batch: Any) -> Any:
        x, i = batch
        return x * 2

    def g(batch: Any) -> Any:
        x, i = batch
        return x * i

    compiled = gradcore.compile(f)
    for k in range(3):
        assert compiled((gradcore.ones(1), k)).item() == 2.0
    assert isinstance(f, FunctionType)
    f.__code__ = g.__code__
    for k in range(3):
        assert compiled((gradcore.ones(1), k)).item() == k


def test_a_name_with_stars_is_not_taken_for_a_parameter_that_has_only_a_place() -> None:
    def f(x: Any, k: Any, /, **more: Any) -> Any:
        return x * more["k"]

    compiled = gradcore.compile(f)
    for k in (1, 2, 3):
        assert compiled(gradcore.ones(1), -k, k=k).item() == k
    assert compiled(gradcore.ones(1), 7, k=3).item() == 3 and len(compiled.traces) == 3


def test_methods_and_arguments_that_are_never_read() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.step = gradcore.compile(self.training_step)

        def training_step(self, batch: Any, number: int, names: Any = ()) -> Any:
            x, i = batch
            return x * 2

        @gradcore.compile
        def other_step(self, batch: Any, number: int, names: Any = ()) -> Any:
            return batch[0] * 2

    trainer = Trainer()
    for step in (trainer.step, trainer.other_step):
        for k in range(4):
            assert step((gradcore.ones(1), k), k, ["a"] * k).item() == 2.0
        assert len(step.traces) == 1, step.explain()


def test_a_batch_with_names_as_a_loader_yields_it() -> None:
    class Named:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, k: int) -> Any:
            return {"x": gradcore.full((2,), float(k)), "name": f"a{k}"}

    @gradcore.compile
    def step(batch: Any) -> Any:
        return batch["x"].sum()

    loader = gradcore.utils.data.DataLoader(Named(), batch_size=3)
    assert [step(batch).item() for batch in loader] == [6.0, 24.0, 42.0, 60.0]
    assert len(step.traces) == 1, step.explain()


def test_instructions_that_are_not_known_read_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradcore.program.calls import unread

    known = unread.steps_of
    monkeypatch.setattr(unread, "steps_of", lambda code: [
        s._replace(opname="LOAD_OTHER") if s.opname == "LOAD_FAST" else s for s in known(code)])
    unread._read_of.cache_clear()
    compiled = gradcore.compile(unpacked)
    for k in range(3):
        compiled((gradcore.ones(2), gradcore.ones(2), k))
    unread._read_of.cache_clear()
    assert len(compiled.traces) == 3

"""Results that are instances which the function has made: dataclasses, simple namespaces, distributions."""

from __future__ import annotations

import dataclasses
import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

import gradcore
from gradcore import distributions as D
from gradcore import nn
from gradcore.errors import TraceError

T = TypeVar("T")


@dataclasses.dataclass
class Output:
    loss: Any
    logits: Any = None
    hidden: tuple[Any, ...] = ()
    scale: float = 2.0

    @functools.cached_property
    def doubled(self) -> Any:
        return self.loss * 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    n: int = 3


@dataclasses.dataclass
class Child(Output):
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.extra = self.scale + 1


@dataclasses.dataclass
class Of(Generic[T]):
    x: T


@dataclasses.dataclass
class Slots:
    __slots__ = ("x",)
    x: Any


@dataclasses.dataclass
class Checking:
    x: Any

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


@dataclasses.dataclass
class Copied:
    x: Any

    def __copy__(self) -> Any:
        return self


@dataclasses.dataclass
class Node:
    x: Any
    parent: Any = None
    child: Any = None

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.parent.__dict__["child"] = self


@dataclasses.dataclass
class Named:
    x: Any
    name: str

    def __post_init__(self) -> None:
        CACHE.setdefault(self.name, self)


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return Output(self.inner(x).square().mean(), logits=self.inner(x))


class Holder:
    last: Any = None
    seen: Any = []

    def assign(self, x: Any) -> Any:
        self.last = Output(x * 2)
        return x * 2, self.last

    def append(self, x: Any) -> Any:
        self.seen.append(Output(1.0))
        return x * 2, self.seen[-1]

    def alias(self, x: Any) -> Any:
        found = Output(x * 3)
        HOLDS(found)
        return x * 2, found

    def weak(self, x: Any) -> Any:
        found = Output(1.0)
        HOLDS(weakref.ref(found))
        return x * 2, found

    def dictionary(self, x: Any) -> Any:
        found = Output(1.0)
        HOLDS(vars(found))
        return x * 2, found

    def cached(self, x: Any) -> Any:
        return x * 2, make_once()

    def named(self, x: Any) -> Any:
        return x * 2, Named(3, "a")


@functools.lru_cache
def make_once() -> Any:
    return Output(1.0)


HELD: list[Any] = []
HOLDS = HELD.append
CACHE: Any = {}
KEPT = Frozen(5)
#: A distribution, which the test of it puts there: its tensors would be in the accounts of all others.
PRIOR: Any = None
PRIORS: Any = ()


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    yield
    HELD.clear()
    Holder.seen.clear()


def parts_of(x: Any) -> Any:
    """A result in lists and dicts of numbers, to be compared."""
    if isinstance(x, gradcore.Tensor):
        return x.tolist(), x.requires_grad
    if isinstance(x, (list, tuple)):
        return type(x), [parts_of(v) for v in x]
    if isinstance(x, dict):
        return {k: parts_of(v) for k, v in x.items()}
    return (type(x), parts_of(vars(x))) if hasattr(x, "__dict__") else x


MAKES: dict[str, Callable[[Any, Any], Any]] = {
    "dataclass": lambda m, x: Output(m(x).sum(), m(x), (x * 2, x)),
    "child": lambda m, x: Child(m(x).sum(), hidden=(x,), more={"a": [m(x)]}),
    "frozen": lambda m, x: Frozen(m(x)),
    "namespace": lambda m, x: SimpleNamespace(loss=m(x).mean(), n=3, names=["a", "b"]),
    "nested": lambda m, x: [Output(m(x), SimpleNamespace(y=x + 1, z=Frozen(x * 3))), {"a": Frozen(m(x).exp())}],
    "generic": lambda m, x: Of[int](m(x)),
    "same tensor twice": lambda m, x: (lambda y: Output(y, y, (x, m.weight)))(m(x)),
    "lazy": lambda m, x: (lambda o: (o.doubled, o))(Output(m(x))),
    "without tensors": lambda m, x: (m(x), Output(1.5)),
    "detached": lambda m, x: Output(m(x).detach()),
}


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("check_every", [0, 2])
def test_a_replay_makes_an_instance_of_its_own(make: str, check_every: int) -> None:
    m = nn.Linear(2, 3)
    f = functools.partial(MAKES[make], m)
    compiled, kept = gradcore.compile(lambda x: f(x), check_every=check_every), []
    for k in range(5):
        x = gradcore.full((4, 2), float(k))
        eager, found = f(x), compiled(x)
        assert parts_of(found) == parts_of(eager)
        kept.append(found)
    assert len(compiled.programs) == 1 and len(compiled.traces) == 1, compiled.explain()
    assert len({id(x) for x in kept}) == 5
    assert parts_of(kept[1]) != parts_of(kept[2])


def test_instances_are_freed_and_may_be_written_to() -> None:
    compiled = gradcore.compile(lambda x: Output(x * 2, [x + 1]))
    before = None
    for _ in range(6):
        found = compiled(gradcore.ones(100))
        assert found.loss.sum().item() == 200 and found.scale == 2.0 and "doubled" not in vars(found)
        assert found.doubled.sum().item() == 400
        found.loss, found.scale = None, 7.0
        found.logits.append(1)
        gone = weakref.ref(found)
        del found
        assert gone() is None
        assert before in (None, gradcore.memory_allocated())
        before = gradcore.memory_allocated()


def test_the_caller_differentiates_what_is_in_an_instance() -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[Any]:
        gradcore.manual_seed(0)
        m = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
        optimizer = gradcore.optim.Adam(m.parameters(), lr=0.1)
        forward, losses = wrap(Wrapped(m)), []
        for k in range(6):
            optimizer.zero_grad()
            found = forward(gradcore.full((3, 2), 0.1 * k))
            (found.loss + found.logits.sum() * 0.1 + found.doubled).backward()
            optimizer.step()
            losses.append(found.loss.item())
        if wrap is gradcore.compile:
            assert forward.programs
        return losses

    assert trained(gradcore.compile) == pytest.approx(trained(lambda f: f), rel=1e-5)


@pytest.mark.parametrize("f", [
    lambda x: (lambda o: (o, o))(Output(x * 2)), lambda x: Slots(x * 2), lambda x: Checking(x * 2), lambda x: Copied(x * 2),
    lambda x: Output(x * 2, Plain(3)), lambda x: Node(x * 2, Node(x * 3)), lambda x: Output(x * 2, lambda: 3),
    lambda x: (x * 2, {Frozen(3): 1}, {1: [*{Frozen(4)}]})[:1] + (Plain(1),)])
def test_what_a_replay_cannot_make_is_refused(f: Any) -> None:
    compiled = gradcore.compile(f)
    for _ in range(3):
        found = compiled(gradcore.ones(2))
    assert not compiled.programs, compiled.explain()
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Output):
        assert found[0] is found[1]
    if isinstance(found, Node):
        assert found.parent.child is found
    del found
    # A node and its child are a cycle.
    gc.collect()


#: By method: the instance that is the last one.
LAST: dict[str, Callable[[Holder, Any], Any]] = {
    "assign": lambda h, x: h.last is x, "append": lambda h, x: h.seen[-1] is x, "alias": lambda h, x: HELD[-1] is x,
    "weak": lambda h, x: HELD[-1]() is x, "dictionary": lambda h, x: HELD[-1] is vars(x),
    "cached": lambda h, x: make_once() is x, "named": lambda h, x: CACHE["a"] is x or x.x == 3}


@pytest.mark.parametrize("name", LAST)
def test_an_instance_that_is_kept_elsewhere_comes_back_as_it_is(name: str) -> None:
    holder = Holder()
    compiled = gradcore.compile(getattr(holder, name))
    for k in range(3):
        found = compiled(gradcore.ones(2))
        assert LAST[name](holder, found[1]), k
    assert name == "cached" or not compiled.programs, compiled.explain()
    if name in ("alias", "weak", "dictionary"):
        assert "it returns a Output, which something else refers to, too" in compiled.traces[0]


def test_what_existed_before_comes_back_as_the_same_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PRIOR", D.Normal(0.0, 1.0))
    monkeypatch.setitem(globals(), "PRIORS", (PRIOR,))
    mine, given = Output(gradcore.ones(2)), SimpleNamespace(x=3)

    def f(x: Any, of: Any) -> Any:
        return x * mine.scale, mine, of, KEPT, PRIOR, PRIORS[0]

    compiled = gradcore.compile(f)
    for _ in range(4):
        _, *found = compiled(gradcore.ones(2), given)
        assert all(a is b for a, b in zip(found, (mine, given, KEPT, PRIOR, PRIOR), strict=True))
    assert compiled.programs, compiled.explain()


def test_a_class_that_each_call_makes_anew_is_refused() -> None:
    def f(x: Any) -> Any:
        @dataclasses.dataclass
        class Local:
            x: Any

        return Local(x * 2)

    compiled = gradcore.compile(f)
    assert len({type(compiled(gradcore.ones(2))) for _ in range(3)}) == 3 and not compiled.programs
    gc.collect()


def test_check_every_compares_instances() -> None:
    settings = SimpleNamespace(scale_1=2, beside=gradcore.ones(1))

    def f(x: Any) -> Any:
        return Output(x * 2, scale=attrgetter("scale_" + str(1))(settings))

    compiled = gradcore.compile(f, check_every=2)
    for _ in range(4):
        compiled(gradcore.ones(2))
    settings.scale_1 = 3
    with pytest.raises(TraceError, match=r"the result.scale: 2 and 3"):
        for _ in range(2):
            compiled(gradcore.ones(2))


def test_a_program_with_an_instance_is_saved(tmp_path: Any) -> None:
    compiled = gradcore.compile(lambda x: Output(x * 2, hidden=(x + 1,)))
    compiled(gradcore.ones(2))
    compiled.save(tmp_path / "f.program")
    found = gradcore.load_program(tmp_path / "f.program")(gradcore.full((2,), 3.0))
    assert [t.tolist() for t in found] == [[6.0, 6.0], [4.0, 4.0]]

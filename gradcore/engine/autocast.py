"""Regions in which some ops run in a lower precision and others in float32, whatever their operands are in.

Micikevicius et al., Mixed Precision Training, arXiv:1710.03740. Outside of a region this costs nothing: the ops of the two
lists are called through another class only while some thread is inside of one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakSet, ref

import numpy as np

from gradcore.dtypes import FLOAT32, join
from gradcore.engine.dispatch import apply
from gradcore.engine.leaf import Leaf
from gradcore.engine.state import State, local, unwatched
from gradcore.engine.value import Value
from gradcore.forking import brief
from gradcore.ops import all_ops
from gradcore.ops.movement import cast
from gradcore.ops.op import Op

F = TypeVar("F", bound=Callable[..., Any])

#: Products, which cost the most and whose kernels add up in float32: they run in the region's dtype.
LOWER = frozenset("matmul linear conv2d conv2d_input_grad attention rnn lstm gru".split())
#: What loses too much, or overflows, in 16 bits: functions that grow fast, sums, norms and losses.
HIGHER = frozenset("""arccos arcsin bce bce_logits cosh cross_entropy ctc_loss cumprod cumsum digamma erfc erfinv exp exp2
    expm1 group_norm huber layer_norm lgamma log log10 log1p log2 log_softmax logit logsigmoid logsumexp mean mse_loss
    polygamma pow prod reciprocal rms_norm rsqrt sinh softmax softplus square sum tan var vector_norm""".split())


class Casts(dict[tuple[Any, ...], tuple[ref[Any], tuple[int, int], Any]]):
    """By the weight's identity and whether gradients were recorded: the weight, its memory and version, and the cast of it. An
    entry goes with its weight, since a region may be around all models that a program makes."""

    __slots__ = ("__weakref__",)

    def add(self, key: tuple[Any, ...], weight: Any, now: tuple[int, int], cast: Any) -> None:
        # Weak, so that the casts of a region that is dropped do not wait for the collector.
        casts = ref(self)

        def gone(_: Any) -> None:
            if (left := casts()) is not None:
                left.pop(key, None)

        self[key] = ref(weight, gone), now, cast


@dataclass(slots=True, repr=False)
class Region:
    """What a thread has said: the dtype of products by type of device, and the casts of weights that it has made.

    Regions are equal that choose the same precisions, whatever they have cast so far.
    """

    dtypes: dict[str, np.dtype[Any]]
    casts: Casts = field(compare=False)
    caching: bool

    def __hash__(self) -> int:
        return hash((frozenset(self.dtypes.items()), self.caching))

    def __repr__(self) -> str:
        return ", ".join(f"{dtype} on {kind}" for kind, dtype in self.dtypes.items()) or "none"

    def of(self, args: tuple[Any, ...]) -> np.dtype[Any] | None:
        """The dtype of products of these operands; None if the region is not for their device."""
        return next((self.dtypes.get(a.storage.device.type) for a in args if isinstance(a, Value)), None)

    def suited(self, op: Op, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operands in the precision that the op runs in."""
        dtype = self.of(args)
        if dtype is None:
            return args
        if op.name in LOWER:
            return tuple([self._lowered(a, dtype) if isinstance(a, Value) else a for a in args])
        written = [op.inputs.index(name) for name in op.writes]
        # What an op writes to is no copy.
        return tuple([cast(a, dtype=FLOAT32) if isinstance(a, Value) and a.spec.narrow and k not in written else a
                      for k, a in enumerate(args)])

    def _lowered(self, x: Any, dtype: np.dtype[Any]) -> Any:
        spec = x.spec
        if not spec.floating or spec.dtype == dtype or spec.dtype.itemsize > 4:
            return x
        if not self.caching or x.edge is None or type(x.edge[0]) is not Leaf or x.base is not None or spec.narrow:
            return cast(x, dtype=dtype)
        key = id(x), local.state.grad, dtype
        # The serial tells memory that the weight has been given since from what was cast.
        now = x.storage.serial, x.storage.version
        found = self.casts.get(key)
        if found is not None and found[1] == now and found[0]() is x:
            return found[2]
        made = cast(x, dtype=dtype)
        self.casts.add(key, x, now, made)
        return made


class Chosen(Op):
    """An op of the lists, while there are regions."""

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        state = local.state
        region, scope = state.autocast, state.scope
        if region is not None:
            try:
                # Nothing sees these casts that sees ops: a part that runs again, where an argument is a leaf, has fewer.
                state.scope = unwatched(scope)
                args = region.suited(self, args)
            finally:
                state.scope = scope
        return apply(self, *args, **attrs)


_listed: list[Op] = [op for name, op in all_ops().items() if name in LOWER | HIGHER]
_lock = brief()
#: The states of the threads that are in a region. A thread may end in one, as in a generator that never went on.
_open: WeakSet[State] = WeakSet()


def note(inside: bool) -> None:
    """Say whether this thread is in a region, before one begins and after one has ended.

    The ops of the lists are called through :class:`Chosen` while any thread is in one. What an interrupt has left half done or
    said too early is put right by the next call.
    """
    with _lock:
        if inside:
            _open.add(local.state)
        else:
            _open.discard(local.state)
        kind = Chosen if _open else Op
        # The first and the last differ after half a loop.
        if not _listed[0].__class__ is _listed[-1].__class__ is kind:
            for op in _listed:
                op.__class__ = kind


def inside(around: Region | None, device_type: str, dtype: np.dtype[Any] | None, caching: bool) -> Region:
    """The region for a type of device, or, with no dtype, the exception from the one around it."""
    dtypes = {} if around is None else dict(around.dtypes)
    # Meta tensors stand for those of the device that a program is written for.
    for kind in (device_type, "meta"):
        if dtype is None:
            dtypes.pop(kind, None)
        else:
            dtypes[kind] = dtype
    # The casts go with the outermost.
    return Region(dtypes, Casts() if around is None else around.casts, caching)


class resumed:
    """Run a part once more in the region that it ran in, or in none, with casts of its own."""

    __slots__ = ("_region", "_around")

    def __init__(self, region: Region | None) -> None:
        self._region = None if region is None else Region(region.dtypes, Casts(), region.caching)

    def __enter__(self) -> None:
        state = local.state
        self._around = state.autocast
        note(True)
        state.autocast = self._region

    def __exit__(self, *exc: object) -> None:
        local.state.autocast = self._around
        if self._region is not None:
            # As at the end of a region: a checkpoint inside keeps it for its second run, which makes casts of its own.
            self._region.casts.clear()
        note(self._around is not None)


def left_alone() -> resumed:
    """A context inside which autocast leaves ops alone: for a function's own products, which are none of a model's."""
    return resumed(None)


# -- functions of several ops that are one op of PyTorch's ----------------------------------------------------------------


def raised(x: Any) -> Any:
    """``x``, in float32 if it is a tensor of 16 bits in a region for its device."""
    region = local.state.autocast
    narrow = region is not None and isinstance(x, Value) and x.spec.narrow and region.of((x,)) is not None
    return cast(x, dtype=FLOAT32) if narrow else x


def widened(values: tuple[Any, ...]) -> Callable[[Any], Any]:
    """A function that gives floating tensors in the widest dtype of those among ``values``."""
    wide = functools.reduce(join, [x.spec.dtype for x in values if _floats(x)] or [FLOAT32])
    return lambda x: cast(x, dtype=wide) if _floats(x) and x.spec.dtype != wide else x


def _on(suited: Callable[[tuple[Any, ...]], Callable[[Any], Any]]) -> Callable[[F], F]:
    """Decorate a function that runs within a region as it does outside, on what ``suited`` gives for each of its operands."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            region = local.state.autocast
            if region is None or region.of(values := (*args, *options.values())) is None:
                return function(*args, **options)
            suit = suited(values)
            args, options = tuple(map(suit, args)), {name: suit(x) for name, x in options.items()}
            with left_alone():
                return function(*args, **options)

        return run  # type: ignore[return-value]

    return decorate


#: Of a function that runs in float32, all of it, as one op of the list :data:`HIGHER` would.
raising = _on(lambda values: raised)
#: Of one that is of neither list: it runs in the widest dtype of its floating operands.
joining = _on(widened)


def _floats(x: Any) -> bool:
    return isinstance(x, Value) and x.spec.floating

"""The table of sample calls of every op: arguments, references in torch or NumPy, and exceptions from the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import gradcore
from gradcore.ops import all_ops

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Operand:
    """A tensor to make: its shape as the op sees it, its values, and its memory layout.

    The layouts ``transposed``, ``heads``, ``sliced``, ``spaced`` and ``expanded`` are views of a contiguous tensor, which gets
    the gradient.
    """

    shape: tuple[int, ...]
    kind: str = "float"
    low: float = -2.0
    high: float = 2.0
    layout: str = "plain"
    #: Exact values instead of random ones.
    given: tuple[float, ...] | None = None

    @property
    def base(self) -> tuple[int, ...]:
        """The shape of the contiguous tensor."""
        if self.layout == "transposed":
            return self.shape[::-1]
        if self.layout == "heads":
            n, h, length, width = self.shape
            return n, length, h, width
        if self.layout == "sliced":
            return (*self.shape[:-1], 2 * self.shape[-1] + 1)
        if self.layout == "spaced":
            return (*self.shape[:-1], self.shape[-1] + 3)
        return (1, *self.shape[1:]) if self.layout == "expanded" else self.shape

    def values(self, rng: np.random.Generator, dtype: Any) -> Array:
        if self.given is not None:
            array = np.array(self.given).reshape(self.base)
        elif self.kind == "float":
            array = rng.uniform(self.low, self.high, self.base)
        else:
            array = rng.integers(int(self.low), int(self.high), self.base)
        return array.astype({"float": dtype, "bool": np.bool_, "int": np.int64, "byte": np.uint8}[self.kind])

    def show(self, x: Any) -> Any:
        """The view that the op sees, of a tensor of gradcore or torch."""
        if self.layout == "transposed":
            return x.permute(*range(len(self.shape))[::-1])
        if self.layout == "heads":
            return x.permute(0, 2, 1, 3)
        if self.layout == "sliced":
            return x[..., 1::2]
        if self.layout == "spaced":
            return x[..., 2:-1]
        return x.expand(*self.shape) if self.layout == "expanded" else x


def floats(*shape: int, low: float = -2.0, high: float = 2.0, layout: str = "plain",
           given: tuple[float, ...] | None = None) -> Operand:
    return Operand(shape, "float", low, high, layout, given)


def ints(*shape: int, low: int = 0, high: int = 5, layout: str = "plain",
         given: tuple[float, ...] | None = None) -> Operand:
    return Operand(shape, "int", low, high, layout, given)


def bytes_(*shape: int, given: tuple[float, ...]) -> Operand:
    return Operand(shape, "byte", 0, 256, "plain", given)


def bools(*shape: int, layout: str = "plain") -> Operand:
    return Operand(shape, "bool", 0, 2, layout)


#: Inputs of ops that are in float32 beside 16-bit floats.
STATISTICS = frozenset(("mean", "rstd", "lse"))


@dataclass(frozen=True)
class Row:
    """A sample call. ``args`` hold operands, numbers, None and lists of operands, in the op's order."""

    op: str
    name: str
    args: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    #: The reference in torch, called with torch, then the arguments.
    torch: Callable[..., Any] | None = None
    #: The reference in NumPy, called with the arguments as arrays.
    numpy: Callable[..., Any] | None = None
    #: Whether the function is differentiable at the sample, so that finite differences apply.
    smooth: bool = True
    #: Whether gradients are compared. They are not with NaNs, for which it is unspecified which operand gets the gradient.
    gradient: bool = True
    #: Relative and absolute tolerance in float32, compared with torch.
    tolerance: float = 1e-5

    def __str__(self) -> str:
        return f"{self.op}-{self.name}"

    @property
    def declared(self) -> Any:
        return all_ops()[self.op]

    def operands(self) -> list[Operand]:
        """The tensors among the arguments, lists flattened."""
        return [operand for _, operand in self._named()]

    def _named(self) -> Iterator[tuple[str, Operand]]:
        """The same with the names of the op's inputs."""
        for name, a in zip(self.declared.inputs, self.args, strict=False):
            for part in a if isinstance(a, list) else (a,):
                if isinstance(part, Operand):
                    yield name, part

    def wanted(self) -> list[int]:
        """The indices of the operands that get a gradient."""
        differentiable = self.declared.differentiable if self.gradient else ()
        return [k for k, (name, a) in enumerate(self._named()) if name in differentiable and a.kind == "float"]

    def values(self, dtype: Any = np.float32, seed: int = 0) -> list[Array]:
        rng = np.random.default_rng(seed)
        wide = np.float32 if np.dtype(dtype).itemsize == 2 else dtype
        return [operand.values(rng, wide if name in STATISTICS else dtype) for name, operand in self._named()]

    def arguments(self, tensors: list[Any]) -> list[Any]:
        """The op's arguments, given a contiguous tensor for each operand."""
        rest = iter(tensors)

        def one(a: Any) -> Any:
            return a.show(next(rest)) if isinstance(a, Operand) else a

        return [[one(part) for part in a] if isinstance(a, list) else one(a) for a in self.args]

    def call(self, tensors: list[Any]) -> Any:
        """Run the op. In-place ops write to copies, since leaves and views must not be written to."""
        op = self.declared
        args = self.arguments(tensors)
        attrs = dict(self.attrs)
        if not tensors:
            attrs.setdefault("device", "cpu")
        for name in op.writes:
            k = op.inputs.index(name)
            if args[k] is not None:
                args[k] = [a.clone() for a in args[k]] if isinstance(args[k], list) else args[k].clone()
        result = op(*args, **attrs)
        # An update op returns only the first list that it wrote; the test compares all.
        return tuple(t for k in map(op.inputs.index, op.writes) for t in args[k]) if op.lists and op.writes else result

    def expected(self, torch: Any, tensors: list[Any]) -> Any:
        """The result of the reference in torch."""
        assert self.torch is not None
        return self.torch(torch, *self.arguments(tensors))

    def formula(self, values: list[Array]) -> Any:
        """The result of the reference in NumPy."""
        assert self.numpy is not None
        rest = iter(values)

        def one(a: Any) -> Any:
            if not isinstance(a, Operand):
                return a
            value = next(rest)
            if a.layout == "transposed":
                return value.T
            if a.layout == "heads":
                return value.transpose(0, 2, 1, 3)
            if a.layout == "sliced":
                return value[..., 1::2]
            return np.broadcast_to(value, a.shape)

        return self.numpy(*[[one(p) for p in a] if isinstance(a, list) else one(a) for a in self.args])


def tensors_of(row: Row, device: Any = "cpu", dtype: Any = np.float32, grads: bool = False) -> list[Any]:
    """A contiguous tensor for each operand; with ``grads``, those that the op differentiates require grad."""
    wanted = row.wanted() if grads else []
    return [gradcore.tensor(v, device=device, requires_grad=k in wanted) for k, v in enumerate(row.values(dtype))]


def parts(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _rows() -> list[Row]:
    from tests import (
        rows_attention,
        rows_elementwise,
        rows_factors,
        rows_images,
        rows_linalg,
        rows_losses,
        rows_networks,
        rows_optimizers,
        rows_order,
        rows_pointwise,
        rows_recurrent,
        rows_sampling,
        rows_shapes,
    )

    modules = (rows_elementwise, rows_pointwise, rows_shapes, rows_order, rows_linalg, rows_factors, rows_networks, rows_images,
               rows_attention, rows_optimizers, rows_losses, rows_recurrent, rows_sampling)
    return [row for module in modules for row in module.ROWS]


def __getattr__(name: str) -> Any:
    if name == "ROWS":
        return _rows()
    raise AttributeError(name)

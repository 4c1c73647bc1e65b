"""Writes to a tensor that an operand is a view of: the operand is read as it was before, on every device."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.devices.host.device import make_host
from gradcore.devices.meta import make_meta
from gradcore.sharing import same_places, share_elements
from gradcore.spec import TensorSpec
from tests.logs import normalized

#: Writes to x [4, 4]; ``of`` copies an operand, or leaves it as it is.
SHIFTED: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "add_ of a shift": lambda x, of: x.view(-1)[1:].add_(of(x.view(-1)[:-1])),
    "copy_ of rows": lambda x, of: x[1:].copy_(of(x[:-1])),
    "rows set": lambda x, of: x.__setitem__(slice(1, None), of(x[:-1])),
    "add_ transposed": lambda x, of: x.add_(of(x.t())), "copy_ transposed": lambda x, of: x.copy_(of(x.t())),
    "div_ by a column": lambda x, of: x.div_(of(x[:, :1])), "sub_ of an element": lambda x, of: x.sub_(of(x[0, 1])),
    "mul_ by the diagonal": lambda x, of: x.mul_(of(x.diagonal())), "pow_": lambda x, of: x.pow_(of(x[1])),
    "lerp_": lambda x, of: x.lerp_(of(x.t()), 0.25), "addcmul_ by two": lambda x, of: x.addcmul_(of(x.t()), of(x[0])),
    "clamp_": lambda x, of: x.clamp_(max=of(x[1])), "overlapping halves": lambda x, of: x[:, :3].mul_(of(x[:, 1:])),
    "masked_fill_": lambda x, of: x.masked_fill_(x.detach() > 3, of(x[2, 2])), "every second": lambda x, of: x.view(-1)[
        2::2].add_(of(x.view(-1)[:-2:2])),
    "index_copy_": lambda x, of: x.index_copy_(0, places(x, 1, 3), of(x[:2])),
    "index_copy_ of all": lambda x, of: x.index_copy_(0, places(x, 1, 5), of(x)),
    "places set": lambda x, of: x.__setitem__(places(x, 1, 3), of(x[:2])),
    "index_add_": lambda x, of: x.index_add_(0, places(x, 1, 3), of(x[:2])),
    "scatter_add_": lambda x, of: x.scatter_add_(0, places(x, 2, 4).reshape(2, 1), of(x[1:3])),
    "index_fill_": lambda x, of: x.index_fill_(0, places(x, 1, 2), of(x[1, 1])),
}
#: Writes of which each element depends on nothing else that is written.
APART: dict[str, Callable[[Any], Any]] = {
    "itself": lambda x: x.add_(x), "itself, detached": lambda x: x.mul_(x.detach()), "itself, in one line": lambda x: x.view(
        -1).add_(x.view(-1)), "one more dimension": lambda x: x.view(1, 4, 4).add_(x),
    "columns": lambda x: x[:, 0].add_(x[:, 1]),
    "halves": lambda x: x[:, :2].mul_(x[:, 2:]), "rows": lambda x: x[:2].copy_(x[2:]),
    "odd and even": lambda x: x.view(-1)[::2].sub_(x.view(-1)[1::2]), "quarters": lambda x: x[:2, 2:].copy_(x[2:, :2].t()),
}


def places(x: Any, first: int, end: int) -> Any:
    return gradcore.arange(first, end, device=x.device) % 4


def start(device: Any = "cpu") -> Any:
    return gradcore.tensor(np.linspace(0.5, 4.5, 16, dtype=np.float32).reshape(4, 4), device=device)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", SHIFTED)
def test_an_operand_is_what_it_was_before_the_write(name: str, compiled: bool) -> None:
    def written(x: Any, of: Callable[[Any], Any]) -> Any:
        y = x * 1.0
        SHIFTED[name](y, of)
        (y * y).sum().backward()
        return y.detach()

    x, leaf = start().requires_grad_(), start().requires_grad_()
    expected = written(leaf, gradcore.clone)
    if compiled:
        run = gradcore.compile(lambda x: written(x, lambda v: v))
        run(x)
        x.grad = None
        found = run(x)
    else:
        found = written(x, lambda v: v)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    np.testing.assert_array_equal(x.grad.numpy(), leaf.grad.numpy())


def log_of(write: Callable[[Any], Any], device: Any) -> list[Any]:
    x = start(device)
    log = device.ledger.begin_log()
    write(x)
    device.ledger.end_log()
    return normalized(log)


@pytest.mark.parametrize("name", SHIFTED)
def test_the_copy_is_in_the_log(name: str) -> None:
    here, meta = (log_of(lambda x: SHIFTED[name](x, lambda v: v), device) for device in (make_host(), make_meta()))
    assert here == meta
    assert any(r.tag.op == "clone" for r in here if hasattr(r, "tag"))


@pytest.mark.parametrize("name", APART)
def test_what_shares_no_other_place_is_not_copied(name: str) -> None:
    assert not any(r.tag.op == "clone" for r in log_of(APART[name], make_host()) if hasattr(r, "tag"))


def test_views_share_elements_if_a_place_is_in_both() -> None:
    rng = random.Random(0)

    def some() -> TensorSpec:
        ndim = rng.randint(0, 3)
        sizes = tuple(rng.choice((0, 1, 2, 3, 4, 4)) for _ in range(ndim))
        return TensorSpec.strided(sizes, rng.choice((np.float32, np.float32, np.int16)),
                                  tuple(rng.choice((0, 1, 2, 3, 4, 6, 8, 12)) for _ in range(ndim)), rng.randint(0, 20))

    def held(x: TensorSpec) -> set[int]:
        return {x.dtype.itemsize * (x.offset + sum(i * s for i, s in zip(at, x.strides, strict=True))) + byte
                for at in itertools.product(*map(range, x.shape)) for byte in range(x.dtype.itemsize)}

    for _ in range(3000):
        a, b = some(), some()
        assert share_elements(a, b) == bool(held(a) & held(b)), (a, b)
    # Too many combinations to try count as sharing.
    wide = [TensorSpec.strided((9,) * 6, np.float32, (2,) * 5 + (k,), k % 2) for k in (1000, 1001)]
    assert share_elements(*wide)
    assert same_places(TensorSpec.of((1, 3), np.float32), TensorSpec.of((3,), np.float32))

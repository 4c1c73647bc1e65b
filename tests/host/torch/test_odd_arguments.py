"""Calls with odd arguments: each gives what PyTorch gives, or raises where PyTorch raises."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import gradcore

#: Nothing in the place of a row of ints, which () may be.
ROWS = [call.replace("*", ints) for ints in ("", "()", "2, 3") for call in (
    "f(1, 3).flip(*)", "f(2, 3).view(*)", "f(2, 3).reshape(*)", "f(2, 3).permute(*)", "f(2, 3).expand(*)", "f(2, 3).repeat(*)",
    "f(2, 3).tile(*)", "f().view(*)", "f().reshape(*)", "f().permute(*)", "f().expand(*)", "f().repeat(*)", "f().tile(*)",
    "t.zeros(*)", "t.ones(*)", "t.empty(*).shape", "t.rand(*).shape", "t.randn(*).shape", "f().new_zeros(*)", "f().new_ones(*)",
    "f().new_empty(*).shape")]
#: Factors and values beside integers of eight bits.
FACTORS = [call.replace("*", value) for value in ("100", "-100", "255", "256", "1000", "2 ** 40", "1.5", "float('nan')",
                                                        "True") for call in (
    "i.add(i, alpha=*)", "u.add(u, alpha=*)", "t.rsub(i, i, alpha=*)", "i.add_(i, alpha=*)", "i.add(3, alpha=*)",
    "i.addcmul(i, i, value=*)", "i.addcmul_(i, i, value=*)", "u.addcmul(u, u, value=*)", "i.index_add(0, n, i, alpha=*)",
    "i.outer(i).addr(i, i, beta=*)", "i.outer(i).addr(i, i, alpha=*)", "i.outer(i).addr_(i, i, alpha=*)",
    "i.addmv(i.outer(i), i, beta=*)", "i.outer(i).addmm(i.outer(i), i.outer(i), alpha=*)", "i.masked_fill(i > 0, *)",
    "u.masked_fill(u > 0, *)", "b.add(b, alpha=*)")]
OTHERS = [
    "t.flip(f(2, 3), dims=())", "f().expand(size=())", "f().repeat(repeats=())", "t.zeros(size=())", "t.tile(f(2, 3), dims=())",
    "t.inner(f(3), f(1))", "t.inner(f(2, 3), f(4, 3))", "f(2, 3).diag(-1.5)", "f(3).diag(1.0)", "f(3).diag_embed(0.5)",
    "f(3).diagflat('a')", "f(2, 3).diag(t.tensor(1))", "f(2, 3).select(0, n)", "f(2, 3).select(1, t.tensor(2))",
    "f(2, 3).sum(0, 1)", "f(2, 3).sum((0,), (1,))", "f(2, 3).mean(0, 1)", "f(2, 3).amax(0, 1)", "f(2, 3).argmax(0, 1)",
    "f(2, 3).max(0, 1)", "f(2, 3).all(0, 1)", "f(2, 3).any(0, 1)", "f(2, 3).prod(0, 1)", "f(2, 3).logsumexp(0, 1)",
    "f(2, 3).std(0, True, 1)", "f(2, 3).nansum(0, 1)", "f(2, 3).norm(2, 0, 1)",
    "f(2, 3).diagonal('a')", "f(2, 3).diagonal(1.5)", "f(2, 3).diagonal(t.tensor(1))", "t.Size([1.5])", "t.Size(['a'])",
    "[*t.Size([True, t.tensor(2)])]", "[*t.Size()]", "t.distributions.Multinomial(-1, f(2))",
    "F.batch_norm(f(3, 2), f(2), None, training=True)", "F.batch_norm(f(3, 2), None, f(2), training=True)",
    "t.func.jacrev(lambda x: x, chunk_size=0)", "t.func.jacrev(lambda x: x, chunk_size=-1)",
    "t.func.jacfwd(lambda x: x, randomness='other')(f(2))", "t.func.jacrev(lambda x: x, chunk_size=1)(f(2))"] + [
    f"t.autograd.functional.{name}(lambda x: {result}, f(2){', f(2)' if name[1:] in ('vp', 'hp') else ''}, strict={strict}, "
    f"create_graph={graph})"
    for name in ("jacobian", "jvp", "hessian", "hvp", "vhp")
    for result in ("(x.sum(), x.sum())", "x.sum()", "x * 2", "(x ** 3).sum()") for strict in (False, True)
    for graph in (False, True)] + [
    f"F.{loss}(f({a}).to(t.{one}), f({b}).to(t.{two}) - 1)" for loss in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
    for one, two in (("bfloat16", "float32"), ("float32", "float64"), ("float64", "float16"), ("bfloat16", "float16"))
    for a, b in (("2", ""), ("", "2"), ("", ""), ("2", "2"))]


def _outcome(t: Any, call: str) -> Any:
    def f(*shape: int) -> Any:
        return t.tensor(np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape))

    small = {name: t.tensor([1, 2, 5], dtype=dtype) for name, dtype in (("i", t.int8), ("u", t.uint8))}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(call, {"t": t, "F": t.nn.functional, "f": f, "n": t.tensor([0, 2, 1]), "b": t.tensor([True, False]),
                               **small})
    except Exception as error:
        return error.with_traceback(None)


@pytest.mark.oracle
@pytest.mark.parametrize("call", ROWS + FACTORS + OTHERS)
def test_odd_arguments_are_taken_or_refused_as_in_pytorch(call: str, torch: Any) -> None:
    ours, theirs = _outcome(gradcore, call), _outcome(torch, call)
    if isinstance(theirs, Exception):
        assert isinstance(ours, type(theirs)), f"PyTorch raises {theirs!r}, and gradcore gives {ours!r}"
        return
    assert not isinstance(ours, Exception), f"PyTorch gives {theirs!r}, and gradcore raises {ours!r}"
    _compare(ours, theirs, torch)


def _compare(ours: Any, theirs: Any, torch: Any) -> None:
    if isinstance(theirs, (tuple, list)):
        for pair in zip(ours, theirs, strict=True):
            _compare(*pair, torch)
    elif isinstance(theirs, torch.Tensor):
        assert isinstance(ours, gradcore.Tensor), repr(ours)
        assert ours.requires_grad == theirs.requires_grad
        assert (ours.dtype.name, tuple(ours.shape)) == (str(theirs.dtype).removeprefix("torch."), tuple(theirs.shape))
        np.testing.assert_allclose(ours.detach().double().numpy(), theirs.detach().double().numpy(), rtol=1e-6)
    else:
        assert ours == theirs

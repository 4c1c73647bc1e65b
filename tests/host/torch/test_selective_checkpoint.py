"""Selective activation checkpointing beside PyTorch: what policies are asked, what they may say, and what is refused."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises


def part_of(library: Any) -> Any:
    return importlib.import_module(f"{library.__name__}.utils.checkpoint")


def name_of(op: Any) -> str:
    """Without PyTorch's namespace and overload."""
    return op.name if isinstance(getattr(op, "name", None), str) else str(op).split(".")[1]


def listed(library: Any, name: str, overload: str = "default") -> Any:
    return name if library is gradcore else getattr(getattr(library.ops.aten, name), overload)


def keeping(library: Any, policy: Any, **options: Any) -> Any:
    return partial(part_of(library).create_selective_checkpoint_contexts, policy, **options)


def asked(library: Any, save: tuple[str, ...] = ("exp",), answer: Any = None) -> Any:
    """What a policy is asked, and the gradient."""
    said: list[Any] = []
    policies = part_of(library).CheckpointPolicy
    yes, no = answer or (policies.MUST_SAVE, policies.PREFER_RECOMPUTE)

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        said.append((name_of(op), tuple(args[0].shape), tuple(ctx.op_output.shape), ctx.is_recompute))
        return yes if name_of(op) in save else no

    def part(x: Any) -> Any:
        y = (x.exp() * x).sin()
        with library.no_grad():
            z = x.tanh()
        return (y * z).sum()

    x = library.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    part_of(library).checkpoint(part, x, use_reentrant=False, context_fn=keeping(library, policy)).backward()
    with library.no_grad():
        part_of(library).checkpoint(part, x, use_reentrant=False, context_fn=keeping(library, policy))
    return said, x.grad.tolist()


def everything(library: Any) -> Any:
    return asked(library, ("exp", "mul", "sin", "tanh", "sum"))


def preferred(library: Any) -> Any:
    policies = part_of(library).CheckpointPolicy
    return asked(library, ("mul", "tanh"), (policies.PREFER_SAVE, policies.MUST_RECOMPUTE))


def yes_or_no(library: Any) -> Any:
    return asked(library, ("sin", "exp"), (True, False))


def written(library: Any) -> Any:
    """The gradient through a kept result that was written to, where that is allowed."""
    x = library.ones(3, requires_grad=True)

    def part(x: Any) -> Any:
        y = x * 2
        y += 1
        return y * y

    def run(**options: Any) -> Any:
        kept = [listed(library, "mul", "Tensor")]
        return part_of(library).checkpoint(part, x, use_reentrant=False, context_fn=keeping(library, kept, **options)).sum()

    y = run()
    with raises(RuntimeError, "Tensor cached during selective activation checkpoint has been mutated"):
        y.backward()
    run(allow_cache_entry_mutation=True).backward()
    return None, x.grad.tolist()


def refused(library: Any) -> Any:
    make = part_of(library).create_selective_checkpoint_contexts
    with raises(TypeError, "policy_fn_or_list must be either a function or a list of ops"):
        make("linear")
    for given in (1, None, library.exp(library.ones(1)), print):
        with raises(ValueError, " but got"):
            make([given])
    x = library.ones(2, requires_grad=True)
    with raises(ValueError, "Passing `context_fn` or `debug` is only supported when use_reentrant=False."):
        part_of(library).checkpoint(lambda x: x.exp(), x, use_reentrant=True, context_fn=keeping(library, []))
    return None, 0


def named(library: Any) -> Any:
    part = part_of(library)
    context = part.SelectiveCheckpointContext(is_recompute=False, op_output=3)
    return ([(p.name, p.value) for p in part.CheckpointPolicy][:4], context.is_recompute, context.op_output), 0


def inside(library: Any) -> Any:
    """One within another, each with a policy: which ops either is asked about."""
    outer: list[str] = []
    inner: list[str] = []

    def noting(said: list[str], *save: str) -> Any:
        def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
            said.append(name_of(op))
            return name_of(op) in save
        return keeping(library, policy)

    def part(x: Any) -> Any:
        y = part_of(library).checkpoint(lambda x: x.exp().sin(), x * 2, use_reentrant=False, context_fn=noting(inner, "exp"))
        return (y * y.cos()).sum()

    x = library.linspace(-1, 1, 5).requires_grad_()
    loss = part_of(library).checkpoint(part, x, use_reentrant=False, context_fn=noting(outer, "sin", "cos"))
    before = [*outer], [*inner]
    loss.backward()
    return before, x.grad.tolist()


PROGRAMS = [asked, everything, preferred, yes_or_no, written, refused, named, inside]


@pytest.mark.oracle
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_as_pytorch(torch: Any, program: Any) -> None:
    (ours, gradient), (theirs, expected) = program(gradcore), program(torch)
    assert ours == theirs
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)

"""What checkpoints keep of chosen ops, for how long, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.engine.state import local
from gradcore.engine.value import tensors_in
from gradcore.events import Drop, Keep, Launch
from gradcore.nn import functional as F
from gradcore.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from tests.conftest import raises
from tests.host.autograd.test_selective_checkpoint import every, keeping_results, small


def test_what_is_kept_is_a_residual_of_its_op_layer_and_line_and_goes_when_it_is_taken() -> None:
    net, x = small()
    with gradcore.step() as step:
        y = checkpoint(net, x, context_fn=keeping_results([gradcore.ops.activation.gelu, F.linear]))
        listed = gradcore.graph(y).nodes[-1].residuals
        y.sum().backward()
    name = "a result that the policy of checkpoint keeps"
    assert [(r.made_by, r.layer, r.nbytes) for r in listed if r.name == name] == [
        ("linear", "0", 2048), ("gelu", "1", 2048), ("linear", "2", 512)]
    kept = [k for k in step.report.kept if k.name == name]
    assert [(k.op, k.layer, k.reason) for k in kept] == [(op, layer, "consumed") for op, layer in (
        ("linear", "0"), ("gelu", "1"), ("linear", "2"))]
    assert {k.line.rpartition(":")[0].rpartition("/")[2] for k in kept} == {"test_selective_kept.py"}
    records = step.recording.records
    launched = Counter(record.invocation.op for record in records if isinstance(record, Launch))
    assert (launched["linear"], launched["gelu"]) == (2, 1)
    # The second run takes a result before a node keeps it, and nothing else has it then.
    number, = {record.node for record in records if isinstance(record, Keep) and record.name == name}
    for serial in [record.serial for record in records if isinstance(record, Keep) and record.node == number][:2]:
        taken = next(i for i, r in enumerate(records) if isinstance(r, Drop) and (r.serial, r.node) == (serial, number))
        holders = Counter[int]()
        for record in records[:taken + 1]:
            if isinstance(record, (Keep, Drop)) and record.serial == serial:
                holders[record.node] += 1 if isinstance(record, Keep) else -1
        assert records[taken].reason == "consumed" and not +holders
    with gradcore.step() as step:
        y = checkpoint(net, x, context_fn=keeping_results(["linear"]))
    assert [(top.op, top.layer) for top in step.report.top if top.role == "residual"] == [("linear", "0")]
    del y


@pytest.mark.parametrize("fails", ["first", "second", "policy"])
def test_an_exception_lets_go_of_what_is_kept(fails: str) -> None:
    net, x = small()
    runs = count()

    def part(x: Any) -> Any:
        y = net(x)
        if next(runs) == (fails == "second") and fails != "policy":
            raise KeyError(fails)
        return y.exp() * y

    def policy(ctx: Any, op: Any, *args: Any, **attrs: Any) -> Any:
        return "save" if fails == "policy" and op.name == "exp" else op.name in ("linear", "exp")

    before = gradcore.memory_allocated("cpu")
    contexts = create_selective_checkpoint_contexts(policy)
    with raises(TypeError if fails == "policy" else KeyError, "'save' for exp" if fails == "policy" else fails):
        y = checkpoint(part, x, context_fn=lambda: contexts)
        try:
            y.sum().backward()
        finally:
            del y
    assert gradcore.memory_allocated("cpu") == before
    assert local.state.watch is None and not local.state.scope.watched


def test_a_graph_that_dies_lets_go_of_what_is_kept() -> None:
    net, x = small()
    before = gradcore.memory_allocated("cpu")
    y = checkpoint(net, x, context_fn=keeping_results(every(1)))
    assert gradcore.memory_allocated("cpu") > before + 4096
    del y
    assert gradcore.memory_allocated("cpu") == before


def test_a_backward_that_takes_a_part_leaves_the_rest_to_be_computed() -> None:
    net, x = small()
    found = []
    for how in (lambda part: part(x), lambda part: checkpoint(part, x, context_fn=keeping_results(every(1)))):
        x.grad = None
        a, b = how(lambda x: (net[0](x).exp(), net[2](net[0](x).sigmoid())))
        a.sum().backward()
        b.sum().backward()
        found.append(x.grad.numpy().copy())
    np.testing.assert_array_equal(*found)


def test_a_kept_result_must_stay_as_it_is_unless_that_is_allowed() -> None:
    x = gradcore.ones(3, requires_grad=True)

    def part(x: Any) -> Any:
        y = x * 2
        y += 1
        return y * y

    for kept in (["mul"], every(1)):
        y = checkpoint(part, x, context_fn=keeping_results(kept))
        with raises(RuntimeError, "Tensor cached during selective activation checkpoint has been mutated: float32[3], which",
                    " mul made at ", "was written to at ", "by add_", "allow_cache_entry_mutation=True"):
            y.sum().backward()
    y = checkpoint(part, x, context_fn=partial(create_selective_checkpoint_contexts, ["mul"], allow_cache_entry_mutation=True))
    y.sum().backward()
    # The second run adds to what is there: 2 * (2 + 1 + 1) * 2.
    assert x.grad.tolist() == [16.0] * 3
    x.grad = None
    checkpoint(part, x, context_fn=keeping_results(["sub"])).sum().backward()
    assert x.grad.tolist() == [12.0] * 3


@pytest.mark.parametrize("kept", [["clone"], every(1)], ids=["clone", "all"])
def test_the_copy_that_an_op_makes_of_what_it_overwrites_is_not_kept(kept: Any) -> None:
    x = gradcore.full((3,), 2.0, requires_grad=True)
    checkpoint(lambda x: (x * 2).add_(1).mul_(x), x, context_fn=keeping_results(kept)).sum().backward()
    # Of (2 x + 1) x.
    assert x.grad.tolist() == [9.0] * 3


def test_what_a_policy_is_told() -> None:
    told = []

    def policy(ctx: Any, op: Any, *args: Any, **attrs: Any) -> CheckpointPolicy:
        assert not gradcore.is_grad_enabled() and isinstance(gradcore.ones(1) * 2, gradcore.Tensor)
        told.append((op.name, [tuple(a.shape) for a in tensors_in(args)],
                     attrs, [tuple(t.shape) for t in tensors_in(ctx.op_output)], ctx.is_recompute))
        return CheckpointPolicy.PREFER_SAVE

    x = gradcore.ones(2, 3, requires_grad=True)
    y = checkpoint(lambda x: gradcore.cat([x, x.max(0, keepdim=True)[0]]).t().exp().mul_(2), x,
                   context_fn=keeping_results(policy))
    expected = [("max_with_index", [(2, 3)], {"dim": 0, "keepdim": True}, [(1, 3), (1, 3)], False),
                ("cat", [(2, 3), (1, 3)], {"dim": 0}, [(3, 3)], False), ("exp", [(3, 3)], {}, [(3, 3)], False)]
    assert told == expected
    # The exponential, to which the same line writes, was not kept.
    y.sum().backward()
    assert x.grad.sum().item() == pytest.approx(18 * math.e)
    with gradcore.no_grad():
        checkpoint(lambda x: x.exp(), x, context_fn=keeping_results(policy))
    assert told == expected


def test_what_cannot_be_kept_is_refused() -> None:
    for given, text in ((gradcore.ones(1), "tensor([1.]) of type Tensor"), (F.scaled_dot_product_attention, "function"),
                        ("product", "'product' of type str"), (len, "builtin"), (nn.Linear, "of type type")):
        with raises(ValueError, "expected ops, their names as in reports, such as 'linear', 'matmul'", text):
            create_selective_checkpoint_contexts(["linear", given])
    with raises(ValueError, "the result of permute cannot be kept instead of computed, since it is a view"):
        create_selective_checkpoint_contexts([gradcore.permute])
    with raises(ValueError, "the result of batch_norm cannot be kept", "it writes to running_mean, running_var"):
        create_selective_checkpoint_contexts(["batch_norm"])
    with raises(TypeError, "policy_fn_or_list must be either a function or a list of ops, but got str"):
        create_selective_checkpoint_contexts("linear")
    x = gradcore.ones(3, requires_grad=True)
    contexts = create_selective_checkpoint_contexts(["exp"])
    y = checkpoint(lambda x: x.exp(), x, context_fn=lambda: contexts)
    with raises(RuntimeError, "have served a checkpoint already: give each a context_fn that makes new ones"):
        checkpoint(lambda x: x.exp(), x, context_fn=lambda: contexts)
    del y


def test_the_second_run_must_call_the_same_ops() -> None:
    x, sizes = gradcore.ones(3, requires_grad=True), count(2)
    y = checkpoint(lambda x: x.repeat(next(sizes)).exp().sin(), x, context_fn=keeping_results(["exp"]),
                   determinism_check="none")
    with raises(RuntimeError, "the second run must call the same ops: it calls exp at ", "for float32[9], where the first has",
                "float32[6]"):
        y.sum().backward()
    turns = count()

    def part(x: Any) -> Any:
        if next(turns):
            x = x.sin()
        return x.sin() * x

    y = checkpoint(part, x, context_fn=keeping_results(["sin"]))
    with raises(RuntimeError, "the second run must call the same ops: it calls sin at "):
        y.sum().backward()


def test_hooks_outside_pack_what_is_kept() -> None:
    net, x = small()
    seen = []
    found = []
    for how in (net, lambda x: checkpoint(net, x, context_fn=keeping_results(["linear"]))):
        x.grad = None
        with gradcore.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.shape) or (t * 2), lambda t: t / 2):
            y = how(x)
        y.sum().backward()
        found.append(x.grad.numpy().copy())
    np.testing.assert_array_equal(*found)
    assert sum(shape == (8, 64) for shape in seen) >= 2

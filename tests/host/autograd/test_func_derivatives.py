"""``gradcore.func``: derivatives and batches as functions, with PyTorch's values, structures, graphs and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.func import grad, grad_and_value, jacrev, linearize, vjp, vmap
from tests.conftest import raises

X = np.random.default_rng(0).normal(size=(4, 3))
Y = np.random.default_rng(1).normal(size=(4, 3))


def curve(x: Any) -> Any:
    return (x.sin() * x).sum()


def nested(x: Any, y: Any) -> Any:
    return {"a": x * y, "b": (x.exp(), [x.sum()])}


def product(t: Any, tree: Any) -> Any:
    """What vjp's function gives for cotangents of ones."""
    ones = {"a": t.ones(3).double(), "b": (t.ones(3).double(), [t.tensor(1.0).double()])}
    return tree[0], tree[1](ones)


def outer(t: Any, of: Callable[..., Any]) -> Any:
    """The gradient of a derivative by a tensor outside of it."""
    w = t.tensor(Y, requires_grad=True)
    of(lambda x: (x * w * w).sum())(t.tensor(X)).sum().backward()
    return w.grad


def of_its_argument(t: Any, of: Callable[..., Any]) -> Any:
    x = t.tensor(X, requires_grad=True)
    of(lambda a: (a * a * x).sum())(x).sum().backward()
    return x.grad


def samples(t: Any, f: Any, x: Any, y: Any) -> Any:
    """The gradient of each sample's loss, by all parameters."""
    net = t.nn.Sequential(t.nn.Linear(3, 4), t.nn.Tanh(), t.nn.Linear(4, 2)).double()
    rng = np.random.default_rng(2)
    weights = {name: t.tensor(rng.normal(size=tuple(p.shape))) for name, p in net.named_parameters()}

    def loss(weights: Any, x: Any, y: Any) -> Any:
        return t.nn.functional.mse_loss(f.functional_call(net, weights, (x[None],)), y[None])

    return f.vmap(f.grad(loss), in_dims=(None, 0, 0))(weights, x, y[:, :2])


def ensemble(t: Any, f: Any, x: Any) -> Any:
    nets = [t.nn.BatchNorm1d(3).double().eval() for _ in range(3)]
    for k, net in enumerate(nets):
        net.weight.data.fill_(k + 1.0)
        net.running_mean.fill_(float(k))
    weights, buffers = f.stack_module_state(nets)
    weights.pop("bias"), buffers.pop("num_batches_tracked")
    return weights, buffers, f.vmap(lambda w, b: f.functional_call(nets[0], (w, b), (x,)))(weights, buffers)


#: By name, of a library, its func, and two tensors [4, 3].
CASES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "grad": lambda t, f, x, y: f.grad(curve)(x),
    "grad of grad": lambda t, f, x, y: f.grad(f.grad(lambda s: s ** 3))(x[0, 0]),
    "grad by two": lambda t, f, x, y: f.grad(lambda x, y: (x * y * y).sum(), argnums=(0, 1))(x, y),
    "grad by one of a tuple": lambda t, f, x, y: f.grad(lambda x, y: (x * y * y).sum(), argnums=(1,))(x, y),
    "grad by the last": lambda t, f, x, y: f.grad(lambda x, y: (x * y * y).sum(), argnums=-1)(x, y),
    "grad beside": lambda t, f, x, y: f.grad(lambda x, *, y: ((x * y * y).sum(), {"a": x * 2}), has_aux=True)(x, y=y),
    "grad by a dict": lambda t, f, x, y: f.grad(lambda d: (d["a"] * d["b"][0]).sum())({"a": x, "b": [y]}),
    "grad that is 0": lambda t, f, x, y: f.grad(lambda x: y.sum())(x),
    "grad of itself": lambda t, f, x, y: f.grad(lambda s: s)(x[0, 0]),
    "grad and value": lambda t, f, x, y: f.grad_and_value(curve)(x),
    "grad and value beside": lambda t, f, x, y: f.grad_and_value(lambda x: (curve(x), x * 3), has_aux=True)(x),
    "vjp": lambda t, f, x, y: product(t, f.vjp(nested, x[0], y[0])),
    "vjp beside": lambda t, f, x, y: f.vjp(lambda x: (x * 2, x), x, has_aux=True)[::2],
    "jvp": lambda t, f, x, y: f.jvp(nested, (x[0], y[0]), (y[0], x[0])),
    "jvp beside": lambda t, f, x, y: f.jvp(lambda x: (x * 2, x), (x,), (y,), has_aux=True),
    "jvp of positions": lambda t, f, x, y: f.jvp(lambda x: tuple(x.max(1)), (x,), (y,)),
    "linearize": lambda t, f, x, y: f.linearize(lambda x: x * x, x)[1](y),
    "jacrev": lambda t, f, x, y: f.jacrev(nested)(x[0], y[0]),
    "jacrev by two": lambda t, f, x, y: f.jacrev(nested, argnums=(0, 1))(x[0], y[0]),
    "jacrev beside": lambda t, f, x, y: f.jacrev(lambda x: (x.sin(), x), has_aux=True)(x[0]),
    "jacfwd": lambda t, f, x, y: f.jacfwd(lambda d: d["a"] * d["b"])({"a": x[0], "b": y[0]}),
    "jacfwd of positions": lambda t, f, x, y: f.jacfwd(lambda x: tuple(x.max(1)))(x),
    "hessian": lambda t, f, x, y: f.hessian(lambda x: (x ** 3).sum() * x[0])(x[0]),
    "hessian by two": lambda t, f, x, y: f.hessian(lambda x, y: (x ** 3 * y).sum(), argnums=(0, 1))(x[0], y[0]),
    "vmap": lambda t, f, x, y: f.vmap(lambda x, y: x @ y)(x, y),
    "vmap along another": lambda t, f, x, y: f.vmap(lambda x, y: x @ y, in_dims=(1, None))(x, y[:, 0]),
    "vmap from the end": lambda t, f, x, y: f.vmap(lambda x: x * 2, in_dims=-1, out_dims=-1)(x),
    "vmap to several": lambda t, f, x, y: f.vmap(lambda x: (x, {"s": x.sum()}), out_dims=(1, 0))(x),
    "vmap to what all share": lambda t, f, x, y: f.vmap(lambda x: (x, y), out_dims=(0, None))(x),
    "vmap of dicts": lambda t, f, x, y: f.vmap(lambda d, s: d["a"] * d["b"] + s, in_dims=({"a": 0, "b": None}, 0))(
        {"a": x, "b": y[0]}, y),
    "vmap with keywords": lambda t, f, x, y: f.vmap(lambda x, n=2, *, k: x * n + k)(x, k=y),
    "vmap of vmap": lambda t, f, x, y: f.vmap(f.vmap(lambda a: a * 2))(x),
    "vmap of grad": lambda t, f, x, y: f.vmap(f.grad(lambda x: (x ** 2).sum()))(x),
    "vmap of jacrev": lambda t, f, x, y: f.vmap(f.jacrev(lambda a: a.sin()))(x),
    "jacrev of vmap": lambda t, f, x, y: f.jacrev(f.vmap(lambda a: a.sin().sum()))(x),
    "gradients of samples": samples,
    "an ensemble": lambda t, f, x, y: ensemble(t, f, x),
    "a graph outside": lambda t, f, x, y: outer(t, f.grad),
    "a graph outside, of jacrev": lambda t, f, x, y: outer(t, f.jacrev),
    "an argument outside": lambda t, f, x, y: of_its_argument(t, f.grad),
    "an argument outside, of jacrev": lambda t, f, x, y: of_its_argument(t, f.jacrev),
    "the name of vmap": lambda t, f, x, y: t.vmap(lambda x: x.sum())(x),
}


def plain(z: Any) -> Any:
    """Structure, shapes, whether there is a graph, values."""
    if isinstance(z, dict):
        return {k: plain(v) for k, v in z.items()}
    if isinstance(z, (tuple, list)):
        return [type(z).__name__, *map(plain, z)]
    return tuple(z.shape), z.requires_grad, (np.round(np.asarray(z.detach()).astype(float), 6) + 0.0).tolist()


@pytest.mark.oracle
# Of PyTorch's own, when it first computes forwards.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated", "ignore:Attempted to insert a get_attr Node")
@pytest.mark.parametrize("name", CASES)
def test_values_and_structures(name: str, torch: Any) -> None:
    found = [plain(CASES[name](t, t.func, t.tensor(X), t.tensor(Y))) for t in (gradcore, torch)]
    assert found[0] == found[1]


#: By a text of the error: of a library and its func.
MISTAKES: dict[str, Callable[[Any, Any], Any]] = {
    "to return a scalar Tensor, got tensor with 1 dims": lambda t, f: f.grad(lambda x: x)(t.ones(2)),
    "to return a Tensor, got <class 'int'>": lambda t, f: f.grad(lambda x: 3)(t.ones(2)),
    "Thing passed to transform API must be Tensor, got <class 'int'>": lambda t, f: f.grad(curve)(3),
    "Got argnum=2, but only 1 positional inputs": lambda t, f: f.grad(curve, argnums=2)(t.ones(2)),
    "argnums must be int or Tuple[int, ...], got: <class 'str'>": lambda t, f: f.grad(curve, argnums="a")(t.ones(2)),
    "only Tensors of floating point dtype can require gradients": lambda t, f: f.grad(curve)(t.tensor([1, 2])),
    "should be a tuple: (output, aux)": lambda t, f: f.grad(curve, has_aux=True)(t.ones(2)),
    "to return only tensors, got unsupported type <class 'int'>": lambda t, f: f.vjp(lambda x: 3, t.ones(2)),
    "All outputs of f must be floating-point or complex Tensors, got Tensor with dtype":
        lambda t, f: f.vjp(lambda x: (x * 2, x > 1), t.ones(2)),
    "All outputs of f must be floating-point": lambda t, f: f.jacrev(lambda x: (x * 2, x.argmax()))(t.ones(2)),
    "All outputs of f must be": lambda t, f: f.hessian(lambda x: x.argmax())(t.ones(2)),
    "Mismatch in shape: grad_output[0] has a shape of": lambda t, f: f.vjp(curve, t.ones(2))[1](t.ones(2)),
    "structure of cotangents to be the same as": lambda t, f: f.vjp(lambda x: (x, x), t.ones(2))[1](t.ones(2)),
    "Expected primals to be a tuple": lambda t, f: f.jvp(curve, t.ones(2), (t.ones(2),)),
    "Got in_dim=0 for an input but the input is of type <class 'int'>": lambda t, f: f.vmap(curve)(3),
    "got no inputs": lambda t, f: f.vmap(curve)(),
    "to have the same size in the mapped dimension, got sizes [2, 3]":
        lambda t, f: f.vmap(lambda x, y: x)(t.ones(2), t.ones(3)),
    "expected `in_dims` to be int or a (potentially nested) tuple": lambda t, f: f.vmap(curve, in_dims=None)(t.ones(2)),
    "Tensor of dimensionality 1 so expected in_dim to satisfy -1 <= in_dim < 1":
        lambda t, f: f.vmap(curve, in_dims=1)(t.ones(2)),
    "in_dims is not compatible with the structure of `inputs`": lambda t, f: f.vmap(curve, in_dims=(0, 0))(t.ones(2)),
    "must only return Tensors, got type <class 'int'>": lambda t, f: f.vmap(lambda x: 3)(t.ones(2)),
    "out_dims is not compatible with the structure of `outputs`":
        lambda t, f: f.vmap(lambda x: (x, x), out_dims=(0, 1, 2))(t.ones(2, 2)),
    "Dimension out of range (expected to be in range of [-1, 0], but got 5)":
        lambda t, f: f.vmap(lambda x: x, out_dims=5)(t.ones(2)),
    "Only allowed values for randomness are 'error', 'different', or 'same'. Got x":
        lambda t, f: f.vmap(curve, randomness="x")(t.ones(2)),
    "chunk_size should be None or greater than 0. (got 0)": lambda t, f: f.vmap(curve, chunk_size=0)(t.ones(2)),
    "called random operation while in randomness error mode":
        lambda t, f: f.vmap(lambda x: t.nn.functional.dropout(x))(t.ones(2, 2)),
    "Expected at least one model, got 0": lambda t, f: f.stack_module_state([]),
    "Expected all models to be of the same class": lambda t, f: f.stack_module_state([t.nn.Linear(1, 1), t.nn.ReLU()]),
    "Expected weight from each model to have the same .requires_grad":
        lambda t, f: f.stack_module_state([t.nn.Linear(1, 1), t.nn.Linear(1, 1).requires_grad_(False)]),
    "independent of the inputs":
        lambda t, f: f.jvp(lambda x: t.ones(2), (t.ones(3),), (t.ones(3),), strict=True),
    "Expected primals and tangents to have the same":
        lambda t, f: f.jvp(curve, (t.ones(2),), (t.ones(2), t.ones(2))),
    "must be int, got": lambda t, f: f.grad(curve, argnums=(0, "a"))(t.ones(2)),
    "argnums must be": lambda t, f: f.grad(curve, argnums="a")(t.ones(2)),
    "the same training/eval mode": lambda t, f: f.stack_module_state([t.nn.ReLU(), t.nn.ReLU().eval()]),
}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_have_pytorchs_words(text: str, torch: Any) -> None:
    kinds = []
    for library in (gradcore, torch):
        with pytest.raises((ValueError, RuntimeError, IndexError)) as error:
            MISTAKES[text](library, library.func)
        assert text in str(error.value)
        kinds.append(next(kind for kind in (IndexError, ValueError, RuntimeError) if isinstance(error.value, kind)))
        del error
    assert kinds[0] is kinds[1]


def test_what_pytorch_takes_and_gradcore_does_not() -> None:
    with raises(ValueError, "expected at least one sample, but the mapped dimension has size 0"):
        vmap(curve)(gradcore.ones(0, 3))
    with raises(ValueError, "at least one input must have samples"):
        vmap(curve, in_dims=(None,))(gradcore.ones(2))


def test_arguments_are_named_once_and_a_tangent_has_its_primals_size() -> None:
    for argnums in ((), (0, 0)):
        with raises(RuntimeError, "argnums must name different arguments, at least one"):
            gradcore.func.grad(curve, argnums=argnums)(gradcore.ones(2))
    with raises(RuntimeError, "a tangent has another size than its primal, [2]: [1]"):
        gradcore.func.jvp(curve, (gradcore.ones(2),), (gradcore.ones(1),))


def test_nothing_has_a_graph_where_nothing_outside_requires_a_gradient() -> None:
    x = gradcore.ones(3)
    results = [grad(curve)(x), grad_and_value(curve)(x)[1], jacrev(lambda x: x * 2)(x), vjp(curve, x)[0],
               linearize(curve, x)[0]]
    with gradcore.no_grad():
        results.append(grad(curve)(gradcore.ones(3, requires_grad=True)))
    assert not any(y.requires_grad for y in results)
    assert x.grad is None and not x.requires_grad


def test_a_gradient_releases_what_it_has_read() -> None:
    """The peak of a chain is where its forward ends, as with backward(); a graph that stays would add the gradients."""
    n = 1 << 12

    def chain(x: Any) -> Any:
        for _ in range(8):
            x = x.exp().log()
        return x.sum()

    peaks = []
    for run in (lambda x: chain(x.requires_grad_()).backward(), grad(chain)):
        x = gradcore.ones(n)
        gradcore.reset_peak_memory_stats("cpu")
        before = gradcore.memory_allocated("cpu")
        run(x)
        peaks.append(gradcore.max_memory_allocated("cpu") - before)
    assert peaks[1] <= peaks[0] + 1024


def test_a_backward_behind_it_leaves_no_gradient_where_nobody_sees_it() -> None:
    """As with the derivative of a network by its input, as a part of the loss."""
    n = 1 << 12
    x, w = gradcore.ones(n), gradcore.ones(n, requires_grad=True)
    slope = grad(lambda x: (x * x * w).sum())(x)
    loss = (slope * slope).sum()
    before = gradcore.memory_allocated("cpu")
    loss.backward(retain_graph=True)
    assert gradcore.memory_allocated("cpu") == before + w.grad.nbytes
    assert (w.grad == 8).all() and x.grad is None


def test_random_numbers_are_the_same_or_differ() -> None:
    zeros = gradcore.zeros(4, 3)
    same, different = (vmap(lambda x: x + gradcore.rand(3), randomness=name)(zeros) for name in ("same", "different"))
    assert (same == same[:1]).all() and not (different[1:] == different[:1]).any()
    gradcore.manual_seed(0)
    first = vmap(lambda x: x + gradcore.rand(3), randomness="same")(zeros)[0]
    behind = gradcore.rand(3)
    gradcore.manual_seed(0)
    assert (gradcore.rand(3) == first).all() and (gradcore.rand(3) == behind).all()


def test_compiled_functions_replay_them() -> None:
    weights = gradcore.tensor(Y[0])
    step = gradcore.compile(lambda x: vmap(grad(lambda x, w: ((x * w).sin()).sum()), in_dims=(0, None))(x, weights))
    for k in range(4):
        x = gradcore.tensor(X + k)
        assert step(x).tolist() == (weights * (x * weights).cos()).tolist()
    assert len(step.traces) == 1 and len(step.programs) == 1


def test_gradients_of_samples_are_joined_once() -> None:
    stacked = gradcore.ones(30, 64, 8, requires_grad=True)
    with gradcore.step() as step:
        vmap(lambda w: (w * w).sum())(stacked).sum().backward()
    # The gradient of each of 30 samples was as large as all of them.
    made = sum(r.requested for r in step.log if isinstance(r, gradcore.events.Alloc))
    assert made < 8 * stacked.nbytes and (stacked.grad == 2).all()

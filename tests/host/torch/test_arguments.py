"""Names of arguments: every function and method accepts PyTorch's by keyword, or raises an error that names them."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import arguments, nn
from gradcore.arguments import form_of
from tests.conftest import raises

NAMES = Path(arguments.__file__).with_name("torch_arguments.txt")
PATHS = ("", "Tensor", "nn.functional", "nn.init", "linalg", "special")
#: Names for other purposes: named dimensions, TorchScript, different things with the same name.
OTHER_THINGS = {"compile", "load", "save", "trace", "initial_seed", "seed", "manual_seed", "set_default_dtype", "result_type"}


def part_of(library: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        library = getattr(library, name)
    return library


def parameters(function: Any) -> list[str]:
    return [p.name for p in inspect.signature(function).parameters.values()]


def schemas(torch: Any, path: str, name: str) -> Iterator[list[str]]:
    """The arguments of each overload of an op of PyTorch's, as Python writes them."""
    found = torch._C._jit_get_schemas_for_operator(f"aten::{f'{path}_' if path in ('linalg', 'special') else ''}{name}")
    # Overloads without a tensor are for numbers and lists in TorchScript.
    own = [s for s in found if any(a.name in ("self", "tensors", "condition") for a in s.arguments)] or found
    for schema in own:
        outs = [a.name for a in schema.arguments if a.is_out]
        names = [a.name for a in schema.arguments if not a.is_out]
        if path == "Tensor":
            if "self" not in names or outs:
                continue
            yield [n for n in names if n != "self"]
        else:
            extra = ["out"] if outs and path != "nn.functional" else []
            # What makes a tensor takes requires_grad in Python, which no schema has.
            extra += ["requires_grad"] * ("pin_memory" in names)
            yield [*("input" if n == "self" else n for n in names if n != "names"), *extra]


def theirs(torch: Any, path: str, name: str) -> list[str]:
    """The arguments of a PyTorch function or method, in order; empty if they are not known."""
    function = getattr(part_of(torch, path), name, None)
    if inspect.isfunction(function):
        names = parameters(function)[path == "Tensor":]
        if not {"args", "kwargs"} >= {*names}:
            return [n for n in names if n not in ("args", "kwargs")]
    # Deprecated names of nn.init pass on what they are given; ops of those names are other things.
    if not callable(function) or isinstance(function, type) or path == "nn.init":
        return []
    found = list(dict.fromkeys(n for names in schemas(torch, path, name) for n in names))
    if found or path != "Tensor":
        return found
    # Conversions, such as x.float(), are no ops: their arguments stand in their docstrings alone.
    said = re.match(rf"\s*{name}\(([^)]*)\) -> Tensor", function.__doc__ or "")
    return re.findall(r"(\w+)=", said[1]) if said else []


def ours(path: str) -> Iterator[tuple[str, Any]]:
    """Our functions and methods, without the wrappers that accept further names."""
    part = part_of(gradcore, path)
    for name in sorted(dir(part)):
        function = inspect.getattr_static(part, name)
        if not name.startswith("_") and inspect.isfunction(function) and (path or name not in OTHER_THINGS):
            yield name, function


def written(torch: Any) -> str:
    lines = ["The arguments of PyTorch 2.13: GRADCORE_WRITE_README=1 pytest tests/host/torch/test_arguments.py writes them."]
    for path in PATHS:
        lines.append(f"[torch.{path}]" if path else "[torch]")
        lines += [f"{name}: {' '.join(found)}" for name, _ in ours(path) if (found := theirs(torch, path, name))]
    return "\n".join(lines) + "\n"


@pytest.mark.oracle
def test_the_arguments_are_pytorchs(torch: Any) -> None:
    if not torch.__version__.startswith("2.13"):
        pytest.skip(f"the names are those of PyTorch 2.13, this is {torch.__version__}")
    text = written(torch)
    if os.environ.get("GRADCORE_WRITE_README") == "1":
        NAMES.write_text(text)
    assert NAMES.read_text() == text, "GRADCORE_WRITE_README=1 pytest tests/host/torch/test_arguments.py regenerates it"


#: PyTorch's arguments that gradcore does not implement, besides those of many functions. A forgotten argument has no line here.
GENERAL = {"out", "generator", "layout", "memory_format", "pin_memory", "size_average", "reduce", "dtype"}
REFUSED = {
    "addmm baddbmm bmm mm Tensor.addmm Tensor.baddbmm Tensor.bmm Tensor.mm": "out_dtype",
    "as_tensor tensor": "t", "einsum": "path tensors", "normal": "input", "sort Tensor.sort": "reverse",
    "randperm tril_indices triu_indices": "requires_grad",
    "linalg.lstsq": "b",
    "Tensor.add_": "b", "Tensor.to": "other", "Tensor.expand": "implicit",
    "Tensor.is_pinned Tensor.pin_memory": "device", "Tensor.random_": "from to", "Tensor.record_stream": "s",
    "nn.functional.interpolate": "antialias", "layer_norm": "cudnn_enable",
    # The name of PyTorch's op; its function has _random_samples, too.
    "nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d": "random_samples",
    "group_norm": "cudnn_enabled", "nn.functional.elu_": "scale input_scale"}


def test_what_is_refused_is_known() -> None:
    told = {name: set(names.split()) for keys, names in REFUSED.items() for name in keys.split()}
    found = {}
    for path in PATHS:
        for name, function in ours(path):
            absent = form_of(function, path, name).absent - GENERAL
            if absent:
                found[f"{path}.{name}".lstrip(".")] = set(absent)
    assert found == told


def test_parameters_stand_in_pytorchs_order() -> None:
    """Arguments that both have are in the same order, so positions mean the same."""
    for path in PATHS:
        order = {name: names for name, names in _ordered(path).items() if len(names) > 1}
        for name, function in ours(path):
            given = [p.name for p in inspect.signature(function).parameters.values()
                     if p.kind is p.POSITIONAL_OR_KEYWORD and p.name in order.get(name, ())]
            assert given == [n for n in order.get(name, ()) if n in given] or name in ELSEWHERE, f"{path}.{name}"


#: Overloads of one function have their arguments in several orders.
ELSEWHERE = {"arange", "sort", "bernoulli", "argsort", "as_tensor", "std", "var", "std_mean", "var_mean", "scatter",
             "scatter_", "norm"}


def _ordered(path: str) -> dict[str, list[str]]:
    part = NAMES.read_text().split(f"[torch.{path}]\n" if path else "[torch]\n")[1].split("\n[")[0]
    return {name: names.split() for name, _, names in (line.partition(":") for line in part.splitlines())}


def _tensors(t: Any) -> tuple[Any, Any, Any, Any]:
    x = t.tensor([[0.5, -1.5, 2.5], [3.25, 0.75, -0.25]])
    return x, x * 2 + 1, t.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), t.tensor([1, 0])


#: Calls by keyword, of a library and four tensors: x and y [2, 3], m [3, 2], i [2] of integers.
CALLS: dict[str, Callable[..., Any]] = {
    "sum": lambda t, x, y, m, i: t.sum(input=x, axis=1, keepdims=True),
    "mean": lambda t, x, y, m, i: x.mean(axis=0, keepdims=True, dtype=t.float64),
    "max": lambda t, x, y, m, i: t.max(input=x, axis=1, keepdim=True).indices,
    "max_other": lambda t, x, y, m, i: t.max(x, other=y) + x.min(other=y),
    "argmax": lambda t, x, y, m, i: x.argmax(axis=1, keepdims=True),
    "std": lambda t, x, y, m, i: x.std(axis=1, keepdims=True),
    "cat": lambda t, x, y, m, i: t.cat(tensors=[x, y], axis=1),
    "stack": lambda t, x, y, m, i: t.stack(tensors=[x, y], dim=2),
    "softmax": lambda t, x, y, m, i: t.softmax(input=x, dim=1, dtype=t.float64),
    "softmax_method": lambda t, x, y, m, i: x.softmax(dim=1, dtype=t.float64) + x.log_softmax(axis=0),
    "softmax_nn": lambda t, x, y, m, i: t.nn.functional.softmax(x, 1, _stacklevel=5, dtype=t.float64),
    "softmin_nn": lambda t, x, y, m, i: t.nn.functional.softmin(x, 1, 3, t.float64),
    "flip": lambda t, x, y, m, i: t.flip(input=x, dims=[0, 1]) + x.flip(dims=(1,)),
    "permute": lambda t, x, y, m, i: t.permute(input=x, dims=(1, 0)) + x.permute(dims=(1, 0)),
    "tile": lambda t, x, y, m, i: t.tile(input=x, dims=(2, 1)) + x.tile(dims=(2, 1)),
    "repeat": lambda t, x, y, m, i: x.repeat(repeats=(2, 1, 3)),
    "reshape": lambda t, x, y, m, i: t.reshape(input=x, shape=(3, 2)) + x.reshape(shape=(3, 2)),
    "view": lambda t, x, y, m, i: x.view(size=(6,)),
    "expand": lambda t, x, y, m, i: x.expand(size=(2, 2, 3)) + t.broadcast_to(input=x, size=(2, 2, 3)),
    "transpose": lambda t, x, y, m, i: t.transpose(input=x, dim0=0, dim1=1) + t.swapaxes(x, axis0=0, axis1=1),
    "squeeze": lambda t, x, y, m, i: t.squeeze(input=t.unsqueeze(input=x, dim=0), dim=0),
    "flatten": lambda t, x, y, m, i: t.flatten(input=x, start_dim=0),
    "narrow": lambda t, x, y, m, i: t.narrow(input=x, dim=1, start=1, length=2),
    "split": lambda t, x, y, m, i: t.split(tensor=x, split_size_or_sections=1, dim=1)[2] + x.split(split_size=1, dim=1)[0],
    "tensor_split": lambda t, x, y, m, i: t.tensor_split(x, sections=3, dim=1)[1] + t.tensor_split(x, indices=(1, 2), dim=1)[0],
    "hsplit": lambda t, x, y, m, i: t.hsplit(x, indices=(1,))[1],
    "pow": lambda t, x, y, m, i: t.pow(input=x, exponent=2) + x.pow(exponent=3),
    "pow_": lambda t, x, y, m, i: x.clone().pow_(exponent=2),
    "mul": lambda t, x, y, m, i: t.mul(input=x, other=y) + x.mul(other=y) + x.add(other=y, alpha=2),
    "eq": lambda t, x, y, m, i: t.eq(input=x, other=y) | x.ge(other=y) | t.logical_and(input=x, other=y),
    "sub": lambda t, x, y, m, i: t.sub(input=x, other=y, alpha=3) - x.sub(other=y) / t.div(x, other=y, rounding_mode="floor"),
    "atan2_": lambda t, x, y, m, i: x.clone().atan2_(other=y),
    "lerp_": lambda t, x, y, m, i: x.clone().lerp_(end=y, weight=0.25),
    "addcmul_": lambda t, x, y, m, i: x.clone().addcmul_(tensor1=x, tensor2=y, value=2).addcdiv_(tensor1=x, tensor2=y),
    "nan_to_num_": lambda t, x, y, m, i: (x / 0).nan_to_num_(posinf=3.0, neginf=-2.0),
    "clamp": lambda t, x, y, m, i: t.clamp(input=x, min=0, max=1),
    "matmul": lambda t, x, y, m, i: t.matmul(input=x, other=m) + t.mm(input=x, mat2=m) + x.mm(mat2=m),
    "bmm": lambda t, x, y, m, i: t.bmm(input=x[None], mat2=m[None]) + x[None].bmm(mat2=m[None]),
    "mv": lambda t, x, y, m, i: t.mv(input=x, vec=x[0]) + t.dot(input=x[0], tensor=y[0]),
    "addmm_": lambda t, x, y, m, i: (x @ m).addmm_(mat1=x, mat2=m, beta=2),
    "round": lambda t, x, y, m, i: t.round(input=x / 3, decimals=2) + (x / 3).round(decimals=1) + (x * 99).round(decimals=-1),
    "round_": lambda t, x, y, m, i: (x / 3).round_(decimals=2),
    "zeros": lambda t, x, y, m, i: t.zeros(size=(2, 3)) + t.ones(size=(2, 3), dtype=t.float64) + t.full((2, 3), fill_value=2),
    "empty": lambda t, x, y, m, i: t.empty(size=(2, 3)).fill_(1) + t.rand(size=(2, 3)) * 0 + t.randn(size=[2, 3]) * 0,
    "new": lambda t, x, y, m, i: x.new_zeros(size=(2,), dtype=t.int64) + i.new_ones((2,), dtype=t.float64, device="cpu"),
    "new_full": lambda t, x, y, m, i: x.new_full((2, 2), 3, dtype=t.int64) + x.new_empty(size=(2, 2), dtype=t.int64).fill_(1),
    "requires_grad": lambda t, x, y, m, i: t.tensor([float(z.requires_grad) for z in (
        t.linspace(0, 1, 3, requires_grad=True), t.arange(3.0, requires_grad=True), t.logspace(0, 1, 3, requires_grad=True),
        t.zeros_like(x, requires_grad=True), t.ones_like(i, dtype=t.float32, requires_grad=True),
        t.zeros_like(i, requires_grad=False), t.empty_like(x, requires_grad=True), t.full_like(x, 2, requires_grad=True),
        t.randperm(3, requires_grad=False), t.normal(0.0, 1.0, (2,), requires_grad=True),
        t.normal(0.0, 1.0, (2,)))]),
    "like": lambda t, x, y, m, i: t.zeros_like(input=x) + t.ones_like(input=x, dtype=t.float64) + t.full_like(x, fill_value=2),
    "index_select": lambda t, x, y, m, i: t.index_select(input=x, dim=1, index=i) + x.index_select(axis=1, index=i),
    "gather": lambda t, x, y, m, i: t.gather(input=x, dim=1, index=i[None]),
    "index_add": lambda t, x, y, m, i: t.index_add(input=x, dim=0, index=i, source=y, alpha=2),
    "scatter": lambda t, x, y, m, i: x.scatter(dim=1, index=i[None], src=y).scatter_add_(dim=1, index=i[None], src=y),
    "where": lambda t, x, y, m, i: t.where(condition=x > 0, input=x, other=y),
    "atleast": lambda t, x, y, m, i: t.atleast_3d(x, i)[0] + t.atleast_2d((i, x))[1][..., None],
    "linalg": lambda t, x, y, m, i: t.det(input=x @ m) + t.linalg.vector_norm(x, axis=None) + t.linalg.norm(input=x),
    "to": lambda t, x, y, m, i: x.to(dtype=t.float64, non_blocking=True, copy=True),
    "copy_": lambda t, x, y, m, i: x.clone().copy_(other=y, non_blocking=True),
    "types": lambda t, x, y, m, i: x.short() + x.char() + x.abs().byte(),
    "mse_loss": lambda t, x, y, m, i: t.nn.functional.mse_loss(x, target=y, reduction="none", weight=x.abs()),
    "weighted": lambda t, x, y, m, i: t.nn.functional.mse_loss(x, y, weight=y.abs()) + t.nn.functional.l1_loss(
        x, y, weight=y.abs()) + t.nn.functional.huber_loss(x, y, weight=y.abs()),
    "written": lambda t, x, y, m, i: t.exp_(input=x.clone()) + t.relu_(x.clone()) + t.nn.functional.relu_(input=y),
    "elu_": lambda t, x, y, m, i: t.nn.functional.elu_(x, alpha=2.0) + t.nn.functional.leaky_relu_(y, negative_slope=0.5),
    "hardtanh_": lambda t, x, y, m, i: t.nn.functional.hardtanh_(x, min_val=0.0) + t.nn.functional.threshold_(y, 1.0, 3.0),
    "selu_": lambda t, x, y, m, i: t.nn.functional.selu_(x) + t.nn.functional.celu_(y),
    "conv2d": lambda t, x, y, m, i: t.conv2d(input=x[None, None], weight=y[None, None, :1, :2]),
    "layer_norm": lambda t, x, y, m, i: t.layer_norm(x, normalized_shape=(3,)) + t.detach(input=x),
    "group_norm": lambda t, x, y, m, i: t.group_norm(x, num_groups=1, cudnn_enabled=True) + t.t(input=m),
    "infinities": lambda t, x, y, m, i: t.isposinf(x / 0) | t.isneginf(input=y / 0) | (t.sgn(x) == 1),
    "asarray": lambda t, x, y, m, i: t.asarray([1, 2], dtype=t.float64) + t.asarray(i, copy=True) + t.asarray(3.0),
    "isin": lambda t, x, y, m, i: t.isin(element=1, test_elements=i) | t.isin(elements=i, test_element=1),
    "searched": lambda t, x, y, m, i: t.searchsorted(sorted_sequence=x[0].abs(), input=y, side="left") + t.bucketize(
        input=x, boundaries=m[0], out_int32=True),
    "composed": lambda t, x, y, m, i: t.xlogy(input=x.abs(), other=y.abs()) + t.copysign(x, other=y) + x.logit(eps=0.1),
    "cdist": lambda t, x, y, m, i: t.cdist(x1=x, x2=y, p=1, compute_mode="donot_use_mm_for_euclid_dist") + t.rsub(
        input=m[:2], other=1, alpha=2),
    "numbers": lambda t, x, y, m, i: t.logspace(start=0, end=1, steps=3, base=2) + t.scalar_tensor(s=2, dtype=t.float64),
    "gathered": lambda t, x, y, m, i: t.block_diag(x, y) * t.vander(x=x[0], N=6, increasing=True).sum() + t.cov(
        input=x, correction=0).sum() + t.combinations(input=x[0], r=2, with_replacement=True).sum(),
    "running": lambda t, x, y, m, i: t.cummax(input=x, dim=1).values + t.logcumsumexp(y, dim=0),
    "scatter_reduce": lambda t, x, y, m, i: t.scatter_reduce(input=x, dim=1, index=i[None], src=y, reduce="amax",
                                                             include_self=False) + x.slice_scatter(src=y[:1], dim=0, end=1),
    "integrals": lambda t, x, y, m, i: t.trapezoid(y=x, dx=2.0, dim=0) + t.cumulative_trapezoid(y=y, x=x, dim=0)[0],
    "nothing": lambda t, x, y, m, i: t.sum(x, 0, out=None) + t.nn.functional.mse_loss(x, y, size_average=None, reduce=None),
    "embedding": lambda t, x, y, m, i: t.nn.functional.embedding(i, x, max_norm=None, scale_grad_by_freq=False, sparse=False)}


@pytest.mark.oracle
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_by_keyword_are_pytorchs(call: Callable[..., Any], torch: Any) -> None:
    ours, theirs = (call(t, *_tensors(t)) for t in (gradcore, torch))
    assert str(theirs.dtype).removeprefix("torch.") == ours.dtype.name
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5)


@pytest.mark.parametrize(("call", "text"), [
    (lambda x: nn.functional.embedding(x.long(), x, sparse=True), "PyTorch's argument 'sparse'"),
    (lambda x: nn.functional.interpolate(x[None, None], scale_factor=2, antialias=True), "avg_pool2d"),
    (lambda x: x.view(dtype=gradcore.int32), "convert the values with x.to(dtype)"),
    (lambda x: x.view(gradcore.int32), "x.detach().numpy().view(dtype)")])
def test_what_is_not_covered_is_refused_by_name(call: Callable[..., Any], text: str) -> None:
    with raises(NotImplementedError, text):
        call(gradcore.ones(2, 2))


def test_an_unknown_argument_is_a_type_error() -> None:
    x = gradcore.ones(2, 2)
    with raises(TypeError, "sum() got an unexpected keyword argument 'axes'"):
        gradcore.sum(x, axes=1)
    with raises(TypeError, "sum() got multiple values for argument 'dim'"):
        x.sum(dim=1, axis=1)
    with raises(TypeError, "multiple values for argument 'dim'"):
        x.sum(0, axis=1)
    with raises(TypeError, "unexpected keyword argument 'out_'"):
        gradcore.exp(x, out_=x)


def test_equality_with_what_is_no_number_is_pythons() -> None:
    x = gradcore.tensor([1, 2])
    assert (x == None) is False and (x != None) is True  # noqa: E711 - what scripts write
    assert (x == "a") is False and (x != "a") is True and x not in ("a", None) and (x == [1, 2]) is False
    assert (x == 1).tolist() == [True, False] and (x != np.int64(1)).tolist() == [False, True]
    with raises(TypeError, "eq() expects tensors and Python numbers"):
        _ = x == 1j


def test_the_state_of_a_module_is_taken_over(torch: Any) -> None:
    model, values = nn.Linear(2, 3).to("meta"), {"weight": gradcore.ones(3, 2), "bias": np.zeros(3, np.float32)}
    weight = model.weight
    assert str(model.load_state_dict(values, assign=True)) == "<All keys matched successfully>"
    assert model.weight is weight and model.weight.requires_grad and model.weight.data_ptr() == values["weight"].data_ptr()
    assert model.to("cpu", non_blocking=True)(gradcore.ones(1, 2)).tolist() == [[2, 2, 2]]
    with raises(RuntimeError, "size mismatch for weight"):
        model.load_state_dict(values | {"weight": gradcore.ones(2, 2)}, assign=True)


def test_layouts_are_taken_and_change_nothing(torch: Any) -> None:
    for library in (gradcore, torch):
        x = library.ones(1, 2, 3, 3)
        for given in (x.to(memory_format=library.channels_last), x.contiguous(memory_format=library.channels_last),
                      x.clone(memory_format=library.preserve_format), library.zeros_like(x, layout=library.strided),
                      library.nn.Conv2d(2, 2, 1).to(memory_format=library.channels_last)(x)):
            assert tuple(given.shape) == (1, 2, 3, 3)
        assert x.is_contiguous(memory_format=library.contiguous_format)


def test_the_kind_of_a_tensor_has_pytorchs_name(torch: Any) -> None:
    for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"):
        ours, theirs = (t.zeros(1, dtype=getattr(t, name)).type() for t in (gradcore, torch))
        assert ours == theirs
    assert gradcore.ones(1).type(gradcore.int64).dtype == np.int64


def test_what_is_written_over_has_its_gradient(torch: Any) -> None:
    grads = []
    for t in (gradcore, torch):
        x = t.tensor([-1.5, 0.25, 3.0], requires_grad=True)
        y = x * 2
        assert t.nn.functional.elu_(y) is y
        y.sum().backward()
        grads.append(x.grad.tolist())
    np.testing.assert_allclose(*grads, rtol=1e-6)


def test_shapes_are_broadcast(torch: Any) -> None:
    for shapes in (((2, 1), (3,)), ((), (4, 1), 5), ((0,), (1,))):
        assert gradcore.broadcast_shapes(*shapes) == tuple(torch.broadcast_shapes(*shapes))
    assert not gradcore.is_complex(gradcore.ones(1))


def test_a_forked_generator_goes_on_from_where_it_was() -> None:
    state = gradcore.get_rng_state()
    with gradcore.fork_rng():
        inside = gradcore.manual_seed(3) and gradcore.rand(3).tolist(), gradcore.randperm(8).tolist()
    behind = gradcore.rand(3).tolist(), gradcore.randperm(8).tolist()
    gradcore.set_rng_state(state)
    assert gradcore.rand(3).tolist() == behind[0] and inside[0] != behind[0]
    before = gradcore.get_rng_state().tolist()
    with gradcore.fork_rng(enabled=False):
        gradcore.rand(3)
    assert gradcore.get_rng_state().tolist() != before


def test_gradcheck_takes_pytorchs_arguments() -> None:
    x = gradcore.tensor([1.0, 2.0], dtype=gradcore.float64, requires_grad=True)
    for check in (gradcore.autograd.gradcheck, gradcore.autograd.gradgradcheck):
        assert check(gradcore.sin, x, nondet_tol=1e-8, check_undefined_grad=False, check_batched_grad=False)
        with raises(NotImplementedError, f"{check.__name__}(check_batched_grad=True) is not supported"):
            check(gradcore.sin, x, check_batched_grad=True)
        with raises(TypeError, f"{check.__name__}() got an unexpected keyword argument 'tolerance'"):
            check(gradcore.sin, x, tolerance=1)

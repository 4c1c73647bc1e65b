"""PyTorch's own samples: the calls by which it tests its ops and modules give the same here, with their gradients."""

from __future__ import annotations

import dataclasses
import importlib.util
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import gradcore

TIES = "which of equal elements comes first is not specified"
TRIANGLE = "the gradient is that of the triangle which is read"
NEARER = "the numbers here are nearer to those of float64"
#: These depend on the instructions that a CPU has: another's samples may agree.
OF_THE_CPU = (TIES, NEARER)
#: Where samples differ, and why, with the dtypes. Whatever else differs fails, and so does a line here that nothing needs.
KNOWN = {
    **dict.fromkeys("argsort kthvalue mode sort topk".split(), (TIES, "int64 bool")),
    "cholesky_inverse": (TRIANGLE, "float32 float64"), "cholesky_solve": (TRIANGLE, "float32 float64"),
    "linalg.pinv.hermitian": (TRIANGLE, "float32 float64"),
    "cov": ("float32 weights of float64 are multiplied in float64", "float64"),
    "logcumsumexp": (NEARER, "float32"), "matrix_exp": (NEARER, "float32"),
    "as_strided": ("elements that overlap have no gradient: x.unfold has", "float32 float64"),
    "as_strided.partial_views": ("a view does not reach beyond itself", "float32 int64 bool float64"),
    "gather": ("an empty index has the input's number of dimensions", "float32 int64 bool float64"),
    "linalg.lstsq": ("one driver for all, that of matrices of any rank", "float32 float64"),
    "linalg.lstsq.grad_oriented": ("one driver for all, that of matrices of any rank", "float32 float64"),
    "linalg.matrix_rank": ("tolerances are numbers", "float32 float64"),
    "linalg.norm.subgradients_at_zero": ("the second gradient of a norm at 0 is 0 here, and not NaN", "float64"),
    "nn.functional.avg_pool2d": ("an empty list is no stride", "float32 int64 float64"),
    "nn.functional.batch_norm": ("an input [0] has no channels", "float32 float64"),
    "nn.functional.multi_margin_loss": ("a lone number has no classes", "float32 float64"),
    "nn.functional.multilabel_margin_loss": ("a lone number has no classes", "float32 float64"),
    "normal.number_mean": ("there is one layout", "float32 float64"),
}
#: The calls that PyTorch refuses and gradcore does not, and why.
NUMBERS = "a number may stand in either place"
LENIENT = {
    **dict.fromkeys("""atan2 copysign eq fmax fmin fmod ge gt le logical_and logical_or logical_xor lt max.binary maximum
                    min.binary minimum ne rsub""".split(), NUMBERS),
    "cov": "weights are not read on the host",
    **dict.fromkeys("aminmax gather multinomial".split(), "a result is converted to the dtype of out="),
    **dict.fromkeys("cat take".split(), "a result is complete before it is copied to out="),
    **dict.fromkeys("nn.functional.max_pool1d nn.functional.max_pool3d".split(), "no samples, or no channels, give no result"),
    "narrow": "a 0-d bool is a number",
}
#: Ops whose results are random, so that only shapes and dtypes are compared.
RANDOM = ("bernoulli", "cauchy", "dropout", "empty", "exponential", "fractional", "geometric", "log_normal", "multinomial",
          "normal", "rand", "rrelu", "uniform")
#: PyTorch's internal names, which reach around the public API.
INTERNAL = ("aten", "max_pool2d_with_indices_backward")
CLOSE = {"float64": (1e-7, 1e-9), "float32": (2e-4, 2e-5)}
#: Samples of an op and dtype: max_pool2d has 1,440, which combine all arguments.
MOST = 50


@pytest.fixture(autouse=True)
def no_chance(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some samples read memory that ``torch.empty`` has left as it was."""
    empty = torch.empty

    def ones(*args: Any, **named: Any) -> Any:
        made = empty(*args, **named)
        if made.layout is torch.strided:
            made.detach().fill_(1)
        return made

    monkeypatch.setattr(torch, "empty", ones)


def ours(x: Any, made: list[tuple[Any, Any]], torch: Any) -> Any:
    """What stands in an argument's place here. Raises LookupError for what gradcore has not got."""
    if isinstance(x, torch.Tensor):
        for theirs, mine in made:
            if theirs is x:
                return mine
        if x.layout is not torch.strided or x.device.type == "meta" or x.ndim > 64:
            raise LookupError
        dtype, whole = ours(x.dtype, made, torch), x.detach()
        # With the same strides, over a copy of the memory.
        size = whole.untyped_storage().nbytes() // whole.element_size()
        flat = torch.as_strided(whole, (size,), (1,), 0).clone()
        memory = gradcore.tensor((flat.float() if x.dtype is torch.bfloat16 else flat).numpy(), dtype=dtype)
        mine = memory.as_strided(tuple(x.shape), x.stride(), x.storage_offset()).detach().requires_grad_(x.requires_grad)
        made.append((x, mine))
        return mine
    if isinstance(x, (torch.dtype, torch.memory_format, torch.layout)):
        try:
            return getattr(gradcore, str(x).removeprefix("torch."))
        except NotImplementedError:
            raise LookupError from None
    if isinstance(x, (torch.Generator, torch.nn.Module)):
        raise LookupError
    if isinstance(x, torch.device):
        return str(x)
    if isinstance(x, torch.nn.LinearCrossEntropyOptions):
        named = {f.name: ours(getattr(x, f.name), made, torch) for f in dataclasses.fields(x)}
        return gradcore.nn.LinearCrossEntropyOptions(**named)
    if callable(x) and x is getattr(torch.nn.functional, getattr(x, "__name__", ""), None):
        return getattr(gradcore.nn.functional, x.__name__)
    if isinstance(x, (list, tuple)):
        return type(x)([ours(v, made, torch) for v in x])
    return {name: ours(v, made, torch) for name, v in x.items()} if isinstance(x, dict) else x


def part(library: Any, path: str) -> Any:
    for name in path.split("."):
        library = getattr(library, name)
    return library


def forms(op: Any) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """The function, the method and the method that overwrites, of PyTorch and of gradcore, as far as both have them."""
    with suppress(AttributeError, NotImplementedError):
        if isinstance(op.op, FunctionType) and op.op.__module__.startswith("torch.testing"):
            # Such as a lambda: the same code over gradcore.
            here: Any = FunctionType(op.op.__code__, {**op.op.__globals__, "torch": gradcore}, closure=op.op.__closure__)
        else:
            here = part(gradcore, op.name)
        yield "function", op.op, here
    for form, method in (("method", op.get_method()), ("in place", op.get_inplace())):
        with suppress(AttributeError, NotImplementedError):
            yield form, method, getattr(gradcore.Tensor, getattr(method, "__name__", ""))


def leaves(x: Any) -> list[Any]:
    return [leaf for v in x for leaf in leaves(v)] if isinstance(x, (list, tuple)) else [x]


def outcome(call: Callable[..., Any], args: Any, named: Any, after: Any = None) -> list[Any] | Exception | None:
    """The results, or the error; None for what is refused as not implemented, or for integers."""
    try:
        found = call(*args, **named)
        return leaves(found if after is None else after(found))
    except NotImplementedError:
        return None
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        return None if "must be of a floating type" in str(error) else type(error)(str(error))


def difference(theirs: Any, mine: Any, wider: float = 1, values: bool = True) -> str:
    """What differs between two results, or ""."""
    if not isinstance(mine, gradcore.Tensor):
        return "" if type(theirs) is type(mine) and theirs == mine else f"{theirs!r}, and here {mine!r}"
    kinds = [f"{x.dtype} {list(x.shape)}".removeprefix("torch.") for x in (theirs, mine)]
    if kinds[0] != kinds[1] or not values:
        return " and ".join(kinds) * (kinds[0] != kinds[1])
    a, b = ((x.float() if "bfloat16" in kinds[0] else x).numpy(force=True) for x in (theirs, mine))
    rtol, atol = CLOSE.get(a.dtype.name, (0, 0))
    differ = ~np.isclose(b, a, rtol, atol * wider, equal_nan=True) if rtol else a != b
    at = tuple(np.argwhere(differ)[0]) if differ.any() else ()
    return f"{a[at]} and {b[at]} at {[*map(int, at)]} of {kinds[0]}" if differ.any() else ""


def gradients(library: Any, results: list[Any], inputs: list[Any], again: bool) -> list[Any]:
    drawn = np.random.default_rng(0)
    given = [library.tensor(drawn.standard_normal(y.shape)).to(y.dtype) for y in results]
    found = library.autograd.grad(results, inputs, given, allow_unused=True, create_graph=again)
    # PyTorch has zeros for some inputs that a result does not depend on, and None for others.
    return [library.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def compared(torch: Any, results: tuple[Any, Any], inputs: list[tuple[Any, Any]], counts: Counter[str], values: bool = True,
             second: bool = False) -> str:
    """What differs in the results of a call or in their gradients, or "". ``inputs`` are those that require one, in pairs."""
    if len(results[0]) != len(results[1]):
        return f"{len(results[0])} and {len(results[1])} results"
    counts["calls"] += 1
    pairs = list(zip(*results, strict=True))
    why = [difference(a, b, values=values) for a, b in pairs]
    for which, wider, again in (("gradients", 10, second), *[("second gradients", 100, False)] * second):
        pairs = [(a, b) for a, b in pairs if getattr(a, "requires_grad", False) and (which == "gradients" or b.requires_grad)]
        if any(why) or not pairs or not inputs or not values:
            break
        theirs, mine = (outcome(gradients, (library, [p[k] for p in pairs], [x[k] for x in inputs], again), {})
                        for k, library in enumerate((torch, gradcore)))
        if not isinstance(theirs, list):
            break
        counts[which] += 1
        pairs = list(zip(theirs, mine, strict=True)) if isinstance(mine, list) else []
        why = [f"{which}: {text}" for a, b in pairs if (text := difference(a, b, wider))] or [str(mine)] * (not pairs)
    return "; ".join(filter(None, why))


def differs(op: Any, dtype: Any) -> bool:
    return bool(op.supports_autograd and dtype.is_floating_point)


def drops(op: Any, sample: Any) -> bool:
    """Does a call drop elements by chance? One function takes the probability in the eleventh place, input included."""
    if op.name.endswith("multi_head_attention_forward"):
        return bool(sample.args[9] and sample.kwargs.get("training", True))
    return bool(sample.kwargs.get("dropout_p"))


def samples(torch: Any, op: Any, dtype: Any) -> list[Any]:
    torch.manual_seed(0)
    return list(islice(op.sample_inputs("cpu", dtype, requires_grad=differs(op, dtype)), MOST))


def of_op(torch: Any, op: Any, dtype: Any, given: list[Any], second: bool, counts: Counter[str]) -> Iterator[str]:
    for sample in given:
        for form, theirs, mine in forms(op):
            if form != "function" and (second or not isinstance(sample.input, torch.Tensor)
                                       or (form == "in place" and sample.broadcasts_input)):
                continue
            made: list[tuple[Any, Any]] = []
            args, named = (sample.input, *sample.args), sample.kwargs
            with suppress(LookupError):
                own, own_named = ours((args, named), made, torch)
                if form == "in place":
                    args, own = (args[0].clone(), *args[1:]), (own[0].clone(), *own[1:])
                after = None if form == "in place" else sample.output_process_fn_grad
                found = outcome(theirs, args, named, after), outcome(mine, own, own_named, after)
                if isinstance(found[0], list) and isinstance(found[1], list):
                    random = drops(op, sample) or any(word in op.name for word in RANDOM)
                    why = compared(torch, found, [x for x in made if x[0].requires_grad], counts, not random,
                                   second and op.supports_gradgrad)
                else:
                    why = "" if None in found or isinstance(found[0], Exception) else f"here {found[1]}"
                if why:
                    yield f"{op.full_name}, {form} of {dtype}: {why}"


def registered(module: str, name: str) -> Any:
    """The entries of one of the lists by which PyTorch tests itself."""
    for needed in ("torch", "expecttest"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: pip install -e '.[oracle]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(f"torch.testing._internal.{module}"), name)


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float64"])
def test_ops(torch: Any, dtype: str) -> None:
    """Functions, methods and those that overwrite, with gradients; of float64 functions with second ones."""
    counts: Counter[str] = Counter()
    found: dict[str, list[str]] = {}
    kind = getattr(torch, dtype)
    for op in registered("common_methods_invocations", "op_db"):
        if kind in op.supported_dtypes("cpu") and not any(word in op.name for word in INTERNAL):
            # Not by the generator: PyTorch keeps the frames in which its samples are made.
            for why in of_op(torch, op, kind, samples(torch, op, kind), dtype == "float64", counts):
                found.setdefault(op.full_name, []).append(why)
    print(counts)
    known = {name for name, (_, dtypes) in KNOWN.items() if dtype in dtypes.split()}
    needed = {name for name in known if KNOWN[name][0] not in OF_THE_CPU}
    assert not found.keys() - known, "\n".join(f"{len(found[n])}x {found[n][0]}" for n in sorted(found.keys() - known))
    assert not needed - found.keys(), "these agree"
    assert counts["calls"] > 2000


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_what_pytorch_refuses(torch: Any) -> None:
    found: dict[str, str] = {}
    refused = 0
    for op in registered("common_methods_invocations", "op_db"):
        for error in op.error_inputs("cpu") if op.error_inputs_func is not None else ():
            sample = error.sample_input
            for _, theirs, mine in filter(lambda form: form[0] == "function", forms(op)):
                with suppress(LookupError):
                    args, named = ours(((sample.input, *sample.args), sample.kwargs), [], torch)
                    said = outcome(theirs, (sample.input, *sample.args), sample.kwargs)
                    here = outcome(mine, args, named)
                    refused += isinstance(said, Exception) and not isinstance(here, list)
                    if isinstance(said, Exception) and isinstance(here, list):
                        found[op.full_name] = f"{op.full_name}: {said}"
    print(refused)
    assert not found.keys() - LENIENT, "\n".join(found[name] for name in sorted(found.keys() - LENIENT))
    assert not LENIENT.keys() - found.keys() and refused > 300


def of_module(torch: Any, info: Any, given: list[Any], training: bool, counts: Counter[str]) -> Iterator[str]:
    cls = part(gradcore, info.name)
    for sample in given:
        made: list[tuple[Any, Any]] = []
        with suppress(LookupError, NotImplementedError):
            args, named = (sample.constructor_input.args, sample.constructor_input.kwargs)
            own_args, own_named = ours((args, named), made, torch)
            theirs = info.module_cls(*args, **named).double().train(training)
            mine = cls(*own_args, **own_named).double().train(training)
            mine.load_state_dict(ours(dict(theirs.state_dict()), [], torch))
            call = sample.forward_input
            own_args, own_named = ours((call.args, call.kwargs), made, torch)
            results = outcome(theirs, call.args, call.kwargs), outcome(mine, own_args, own_named)
            if not isinstance(results[0], list) or not isinstance(results[1], list):
                why = f"here {results[1]}" * isinstance(results[0], list)
            else:
                inputs = [x for x in (*made, *zip(theirs.parameters(), mine.parameters(), strict=True)) if x[0].requires_grad]
                random = training and any(word in info.name.lower() for word in RANDOM)
                states = zip(theirs.state_dict().values(), mine.state_dict().values(), strict=True)
                why = compared(torch, results, inputs, counts, not random) or "; ".join(
                    text for a, b in states if isinstance(a, torch.Tensor) and (text := difference(a, b)))
            if why:
                yield f"{info.name}, training={training}: {why}"


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [True, False])
def test_modules(torch: Any, training: bool) -> None:
    """Results, gradients of inputs and parameters, and the buffers after the call, in float64."""
    counts: Counter[str] = Counter()
    found = []
    for info in registered("common_modules", "module_db"):
        with suppress(AttributeError, NotImplementedError):
            part(gradcore, info.name)
            if "Lazy" not in info.name:
                torch.manual_seed(0)
                given = list(info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=True,
                                                     training=training))
                found += of_module(torch, info, given, training, counts)
    print(counts)
    assert not found, f"{len(found)} calls, as {found[0]}"
    assert counts["calls"] > 800

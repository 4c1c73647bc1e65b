"""Dtypes of results: every pair of operands of every dtype gives PyTorch's dtype, or an error in both libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from tests.conftest import raises

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
#: Operands: a tensor with dimensions or without, of a dtype, or a Python number.
OPERANDS = [(name, dims) for name in DTYPES for dims in (1, 0)] + [(True, None), (3, None), (1.5, None)]

CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda t, x, y: x + y, "sub": lambda t, x, y: x - y, "mul": lambda t, x, y: x * y, "div": lambda t, x, y: x / y,
    "floor_divide": lambda t, x, y: x // y, "remainder": lambda t, x, y: x % y, "pow": lambda t, x, y: x ** y,
    "eq": lambda t, x, y: x == y, "lt": lambda t, x, y: x < y, "and": lambda t, x, y: x & y,
    "where": lambda t, x, y: t.where(t.tensor([True]), x, y), "result_type": lambda t, x, y: t.result_type(x, y),
    "logical_or": lambda t, x, y: t.logical_or(x, y), "maximum": lambda t, x, y: t.maximum(x, y),
    "fmod": lambda t, x, y: t.fmod(x, y), "atan2": lambda t, x, y: t.atan2(x, y), "clamp": lambda t, x, y: t.clamp(x, y),
    "add_": lambda t, x, y: x.add_(y), "sub_": lambda t, x, y: x.sub_(y), "mul_": lambda t, x, y: x.mul_(y),
    "div_": lambda t, x, y: x.div_(y), "pow_": lambda t, x, y: x.pow_(y), "copy_": lambda t, x, y: x.copy_(y),
    "masked_fill": lambda t, x, y: x.masked_fill(t.tensor([True]), y), "cat": lambda t, x, y: t.cat([x, y]),
}
#: Functions of one operand.
ALONE: dict[str, Callable[[Any, Any], Any]] = {
    "exp": lambda t, x: t.exp(x), "sqrt": lambda t, x: x.sqrt(), "neg": lambda t, x: -x, "abs": lambda t, x: abs(x),
    "sum": lambda t, x: x.sum(), "mean": lambda t, x: x.mean(), "prod": lambda t, x: x.prod(),
    "cumsum": lambda t, x: x.cumsum(0), "amax": lambda t, x: x.amax(), "argmax": lambda t, x: x.argmax(),
    "any": lambda t, x: x.any(), "var": lambda t, x: t.cat([x, x]).var(),
    "sigmoid": lambda t, x: t.sigmoid(x), "square": lambda t, x: t.square(x), "floor": lambda t, x: t.floor(x),
    "reciprocal": lambda t, x: t.reciprocal(x), "softmax": lambda t, x: t.softmax(x, 0), "relu": lambda t, x: t.relu(x),
    "sort": lambda t, x: t.sort(x)[0], "invert": lambda t, x: ~x, "logsumexp": lambda t, x: t.logsumexp(x, 0),
    "zeros_like": lambda t, x: t.zeros_like(x), "count_nonzero": lambda t, x: t.count_nonzero(x),
}
#: Calls that accept a Python number or a bool here, where PyTorch needs a tensor, or has no kernel.
LENIENT = {"logical_or", "maximum", "fmod", "atan2", "clamp", "abs", "argmax", "floor"}
#: Calls with another dtype, or an error: in PyTorch a bool to the power True is unchanged.
OTHER = {("pow", "bool", True), ("pow_", "bool", True)}


def made(library: Any, operand: tuple[Any, Any]) -> Any:
    name, dims = operand
    return name if dims is None else library.ones((1,) * dims, dtype=getattr(library, name))


def outcome(library: Any, call: Callable[..., Any], *operands: tuple[Any, Any]) -> str:
    """The name of the result's dtype, or that there is no result."""
    try:
        found = call(library, *[made(library, o) for o in operands])
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError, IndexError):
        return "refused"
    dtype = found.dtype if hasattr(found, "storage") or hasattr(found, "storage_offset") else found
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def differences(torch: Any, call: Callable[..., Any], cases: list[tuple[Any, ...]], name: str = "") -> list[Any]:
    found = [(case, outcome(gradcore, call, *case), outcome(torch, call, *case)) for case in cases]
    return [(case, f"{ours}, PyTorch {theirs}") for case, ours, theirs in found if ours != theirs
            and (theirs != "refused" or name not in LENIENT) and (name, *[o[0] for o in case]) not in OTHER]


@pytest.mark.oracle
@pytest.mark.parametrize("name", CALLS)
def test_two_operands_give_torchs_dtype(name: str, torch: Any) -> None:
    pairs = [(x, y) for x in OPERANDS for y in OPERANDS if x[1] is not None or y[1] is not None]
    if name.endswith("_") or name in ("masked_fill", "clamp", "maximum", "cat", "atan2"):
        pairs = [(x, y) for x, y in pairs if x[1] is not None]
    assert differences(torch, CALLS[name], pairs, name) == []


@pytest.mark.oracle
@pytest.mark.parametrize("wide", ["int16", "int64", "float64"])
@pytest.mark.parametrize("name", "add sub mul div floor_divide remainder maximum fmod atan2 add_ mul_ eq lt".split())
def test_a_0d_operand_is_first_given_the_dtype_of_the_result(name: str, wide: str, torch: Any) -> None:
    """Integers wrap around, and a float is rounded before anything is computed with it, not after."""
    number, narrow = (0.1, ("float32",)) if wide == "float64" else (300, ("uint8", "int8", "float32"))
    for dtype in narrow:
        for turned in (False, True) if not name.endswith("_") else (False,):
            ours, theirs = (CALLS[name](t, *[t.arange(1, 60, dtype=getattr(t, dtype)),
                                             t.tensor(number, dtype=getattr(t, wide))][::-1 if turned else 1])
                            for t in (gradcore, torch))
            tolerance = 2e-7 if name == "atan2" else 0
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), tolerance, err_msg=f"{dtype}, turned: {turned}")


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
@pytest.mark.parametrize("name", "add sub mul div floor_divide remainder fmod".split())
def test_an_integer_beside_floats_is_first_given_their_dtype(name: str, dtype: str, torch: Any) -> None:
    """The GPU's kernels compute so, too; NumPy would take float64, in which 21 % 0.7 is 0.7."""
    numbers = [0, 3, 21, 254] if dtype == "uint8" else [21, 16777217, 2147483646, -2147483647]
    for second in (0.7, [0.7, 2.0, 16777216.0, 3.3], "0-d"):
        ours, theirs = (getattr(t, name)(t.tensor(numbers, dtype=getattr(t, dtype)), second if second == 0.7 else t.tensor(
            2.3 if second == "0-d" else second)) for t in (gradcore, torch))
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), str(second))
    made = [t.full((4,), 16777216.0).sub_(t.tensor([0, 1, 16777217, 16777219])).tolist() for t in (gradcore, torch)]
    assert made[0] == made[1]


@pytest.mark.oracle
def test_a_divisor_that_wraps_around_to_0_is_refused(torch: Any) -> None:
    for t in (gradcore, torch):
        for call in (lambda x, y: x // y, lambda x, y: x % y, lambda x, y: x.floor_divide_(y)):
            for dtype, divisor in (("uint8", 256), ("int32", 1 << 32)):
                for given in (divisor, t.tensor(divisor)):
                    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                        call(t.tensor([1, 2], dtype=getattr(t, dtype)), given)


@pytest.mark.oracle
@pytest.mark.parametrize("name", ALONE)
def test_one_operand_gives_torchs_dtype(name: str, torch: Any) -> None:
    assert differences(torch, ALONE[name], [((d, 1),) for d in DTYPES], name) == []


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", DTYPES[:6])
@pytest.mark.parametrize("name", (
    "reciprocal exp exp2 expm1 log log1p log2 log10 sqrt rsqrt sin cos tan sinh cosh asinh atan erf erfc lgamma digamma "
    "sigmoid sinc acosh").split())
def test_functions_of_integers_are_computed_as_floats(name: str, dtype: str, torch: Any) -> None:
    ours, theirs = (getattr(t, name)(t.tensor([1, 3, 20]).to(getattr(t, dtype))) for t in (gradcore, torch))
    assert ours.dtype.name == "float32"
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), 1e-6, 1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", DTYPES[6:])
def test_the_infinities_become_the_ends_of_the_tensors_own_dtype(dtype: str, torch: Any) -> None:
    values = [float("inf"), -float("inf"), float("nan"), 1.5]
    for call in (lambda t, x: t.nan_to_num(x), lambda t, x: x.nan_to_num_(), lambda t, x: x.nan_to_num(1.0, neginf=-2.0)):
        ours, theirs = (call(t, t.tensor(values, dtype=getattr(t, dtype))) for t in (gradcore, torch))
        assert ours.dtype.name == dtype and ours.double().tolist() == theirs.double().tolist()


@pytest.mark.oracle
@pytest.mark.parametrize("given", DTYPES[:6])
@pytest.mark.parametrize("asked", [d for d in DTYPES if d != "bfloat16"])
def test_folds_give_the_dtype_that_is_asked_for(asked: str, given: str, torch: Any) -> None:
    calls = [lambda t, x, d: x.sum(dtype=d), lambda t, x, d: t.sum(x, 1, dtype=d), lambda t, x, d: x.prod(dtype=d),
             lambda t, x, d: x.prod(1, dtype=d)]
    # PyTorch has no running sums of bools.
    running = [lambda t, x, d: x.cumsum(1, dtype=d), lambda t, x, d: t.cumprod(x, 0, dtype=d)]
    for call in calls + running * (asked != "bool"):
        ours, theirs = (call(t, t.tensor([[1, 3], [100, 2]]).to(getattr(t, given)), getattr(t, asked))
                        for t in (gradcore, torch))
        assert ours.dtype.name == asked
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.oracle
@pytest.mark.parametrize("default", ["float64", "bfloat16", "float16"])
def test_the_default_dtype_is_what_numbers_get(default: str, torch: Any) -> None:
    calls = [CALLS["add"], CALLS["div"], lambda t, x, y: t.exp(x) * t.tensor(1.5)]
    pairs = [(x, y) for x in OPERANDS for y in ((1.5, None), (3, None), ("int32", 1)) if x[1] is not None]
    libraries = (gradcore, torch)
    before = [library.get_default_dtype() for library in libraries]
    try:
        for library in libraries:
            library.set_default_dtype(getattr(library, default))
        assert [differences(torch, call, pairs) for call in calls] == [[], [], []]
        assert gradcore.zeros(1).dtype == gradcore.tensor([0.5]).dtype == getattr(gradcore, default)
    finally:
        for library, dtype in zip(libraries, before, strict=True):
            library.set_default_dtype(dtype)
    assert (gradcore.tensor([1]) / 2).dtype == gradcore.float32, "what was remembered of the former default is forgotten"


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list")
@pytest.mark.parametrize("data", [
    [np.float64(1)], [1.0, np.float64(2)], [[1.0], [np.float64(2)]], [np.ones(2), np.ones(2)], (np.float32(1), 2.5),
    [np.float16(1)], [np.float16(1), 2.5], [np.ones(2, np.float32), np.ones(2)], [1, np.float64(2)], [[1.5, 2], [3, 4]],
    [np.int32(3)], [np.bool_(True)], [True, 2.5], [], 2.5, [np.ones(1, np.uint8)]], ids=repr)
def test_what_is_numpys_in_a_list_keeps_its_dtype(data: Any, torch: Any) -> None:
    assert str(gradcore.tensor(data).dtype) == str(torch.tensor(data).dtype).removeprefix("torch.")


@pytest.mark.oracle
def test_promote_types_and_can_cast_are_torchs(torch: Any) -> None:
    for a in DTYPES:
        for b in DTYPES:
            ours, theirs = ([getattr(t, n) for n in (a, b)] for t in (gradcore, torch))
            assert str(torch.promote_types(*theirs)) == f"torch.{gradcore.promote_types(*ours).name}", (a, b)
            assert gradcore.can_cast(*ours) == torch.can_cast(*theirs), (a, b)


def test_limits() -> None:
    assert gradcore.finfo(gradcore.float16).max == 65504 and gradcore.finfo().eps == np.finfo(np.float32).eps
    assert gradcore.iinfo(gradcore.uint8).max == 255 and gradcore.finfo(gradcore.bfloat16).bits == 16
    with raises(TypeError, "finfo is of floating-point types, but got int64"):
        gradcore.finfo(gradcore.int64)
    for kind in (gradcore.float32, gradcore.bool):
        with raises(TypeError, f"iinfo is of integers, but got {kind.name}"):
            gradcore.iinfo(kind)
    with raises(TypeError, "only floating-point types are supported as the default type, but got int64"):
        gradcore.set_default_dtype(gradcore.int64)


def test_what_is_a_tensor() -> None:
    x = gradcore.zeros(2, 3)
    assert gradcore.is_tensor(x) and gradcore.is_tensor(gradcore.nn.Parameter(x)) and not gradcore.is_tensor(x.numpy())
    assert gradcore.numel(x) == 6 and gradcore.is_floating_point(x) and not gradcore.is_floating_point(x.long())


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "floor_divide", "true_divide", "multiply"])
def test_two_numbers_give_a_tensor(name: str, torch: Any) -> None:
    for x, y in ((7, 2), (7.5, 2), (2, 7.5), (True, 2), (-7, 2)):
        if name == "sub" and x is True:
            continue
        theirs, ours = (getattr(library, name)(x, y) for library in (torch, gradcore))
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-6) and str(theirs.dtype) == f"torch.{ours.dtype}"
    for mode in ("trunc", "floor"):
        assert gradcore.div(-7, 2, rounding_mode=mode).item() == torch.div(-7, 2, rounding_mode=mode).item()

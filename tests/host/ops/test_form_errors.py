"""Invalid calls of functions and methods: PyTorch raises errors for them too, and the text names what was given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.errors import DimError, LinAlgError, SpecError
from tests.conftest import raises

#: A call on the given library, the error here, and parts of its text.
Case = tuple[Callable[[Any], Any], Any, tuple[str, ...]]


def refused_by_both(case: Case, torch: Any) -> None:
    """The call raises an error that names what was given, nothing stays allocated, and torch raises an error too."""
    call, kind, texts = case
    before = set(gradcore.device("cpu").ledger.live)
    with raises(kind, *texts):
        call(gradcore)
    assert set(gradcore.device("cpu").ledger.live) == before
    with raises((RuntimeError, IndexError, TypeError, ValueError)):
        call(torch)


def f(t: Any, *shape: int) -> Any:
    return t.tensor(np.ones(shape, np.float32))


def i(t: Any, *values: int) -> Any:
    return t.tensor(np.array(values, np.int64))


CASES: dict[str, Case] = {
    "rand": (lambda t: t.rand(-1), SpecError, ("negative dimension -1", "[-1]")),
    "randn": (lambda t: t.randn(2, -3), SpecError, ("negative dimension -3", "[2, -3]")),
    "one_hot": (lambda t: t.nn.functional.one_hot(i(t, 0, 5), 3), IndexError, ("5", "size 3")),
    "one_hot negative": (lambda t: t.nn.functional.one_hot(i(t, 0, -1)), IndexError, ("-1", "size 1")),
    "one_hot of 0": (lambda t: t.nn.functional.one_hot(i(t, 1), 0), IndexError, ("1", "size 0")),
    "one_hot of none": (lambda t: t.nn.functional.one_hot(i(t)), RuntimeError, ("empty tensor",)),
    "bce": (lambda t: t.nn.functional.binary_cross_entropy(f(t, 2) * 1.5, f(t, 2)), RuntimeError, ("input", "1.5")),
    "bce of nan": (lambda t: t.nn.functional.binary_cross_entropy(f(t, 2) * float("nan"), f(t, 2)), RuntimeError, ("nan",)),
    "bce target": (lambda t: t.nn.functional.binary_cross_entropy(f(t, 2), f(t, 2) * 2), RuntimeError, ("target", "2.0")),
    "tensor too large": (lambda t: t.tensor([300, 2], dtype=t.uint8), RuntimeError, ("uint8", "300")),
    "tensor too small": (lambda t: t.tensor([-256], dtype=t.uint8), RuntimeError, ("uint8", "-256")),
    "tensor below": (lambda t: t.tensor(-200, dtype=t.int8), RuntimeError, ("int8", "-200")),
    "tensor beyond int64": (lambda t: t.tensor(2**63), RuntimeError, ("int64", str(2**63))),
    "masked_fill": (lambda t: i(t, 1).masked_fill(i(t, 1) > 0, float("inf")), RuntimeError, ("int64", "inf")),
    "masked_fill_": (lambda t: i(t, 1).masked_fill_(i(t, 1) > 0, float("nan")), RuntimeError, ("int64", "nan")),
    "add alpha": (lambda t: t.add(i(t, 1), i(t, 1), alpha=0.5), RuntimeError, ("alpha", "0.5")),
    "add a NumPy alpha": (lambda t: t.add(i(t, 1), i(t, 1), alpha=np.float32(0.5)), RuntimeError, ("alpha", "0.5")),
    "sub_ alpha": (lambda t: i(t, 1).sub_(i(t, 1), alpha=0.5), RuntimeError, ("alpha", "0.5")),
    "add_ alpha": (lambda t: i(t, 1).add_(2, alpha=0.5), RuntimeError, ("alpha", "0.5")),
    "linspace too large": (lambda t: t.linspace(0, 300, 4, dtype=t.int8), RuntimeError, ("int8", "300")),
    "linspace below": (lambda t: t.linspace(-3.5, 10, 4, dtype=t.uint8), RuntimeError, ("uint8", "-3.5")),
    "linspace from nan": (lambda t: t.linspace(math.nan, 3, 3, dtype=t.int64), RuntimeError, ("int64", "nan")),
    "arange step": (lambda t: t.arange(0, 2, 0.3, dtype=t.int64), SpecError, ("step must be nonzero",)),
    "multinomial of 0": (lambda t: t.multinomial(f(t, 2) * 0, 1), RuntimeError, ("sum of probabilities",)),
    "multinomial negative": (lambda t: t.multinomial(-f(t, 2), 1), RuntimeError, ("element < 0", "-1.0")),
    "multinomial of nan": (lambda t: t.multinomial(f(t, 2) * float("nan"), 1, True), RuntimeError, ("nan",)),
    "multinomial of inf": (lambda t: t.multinomial(f(t, 3, 2) * float("inf"), 1, True), RuntimeError, ("inf",)),
    "bernoulli": (lambda t: t.bernoulli(f(t, 2) * 1.5), RuntimeError, ("1.5",)),
    "bernoulli_": (lambda t: f(t, 2).bernoulli_(f(t, 2) * float("nan")), RuntimeError, ("nan",)),
    "flip twice": (lambda t: f(t, 2, 3).flip(0, 0), SpecError, ("(0, 0)", "multiple times")),
    "flip dim": (lambda t: f(t, 2).flip(1), DimError, ("[-1, 0]", "but got 1")),
    "fliplr": (lambda t: t.fliplr(f(t, 2)), SpecError, (">= 2-d", "1-d")),
    "flipud": (lambda t: t.flipud(f(t)), SpecError, (">= 1-d", "0-d")),
    "roll": (lambda t: f(t, 3).roll((1, 2), 0), SpecError, ("must align", "2 shifts and 1 dims")),
    "roll flat": (lambda t: f(t, 3).roll((1, 2)), SpecError, ("must align", "2 shifts and no dims")),
    "roll of 0-d": (lambda t: f(t).roll(1, 0), DimError, ("0-d tensor", "leave them out")),
    "repeat_interleave of 0-d": (lambda t: f(t).repeat_interleave(2, 0), DimError, ("dim=0", "0-d tensor")),
    "unique of 0-d": (lambda t: f(t).unique(dim=0), DimError, ("dim=0", "0-d tensor")),
    "diag_embed of 0-d": (lambda t: f(t).diag_embed(), DimError, ("0-d tensor",)),
    "svd of a vector": (lambda t: t.svd(f(t, 2), compute_uv=False), SpecError, ("[..., m, n]", "[2]")),
    "cholesky of a vector": (lambda t: t.cholesky(f(t, 3), upper=True), SpecError, ("square matrices", "[3]")),
    "cholesky_inverse of a vector": (lambda t: t.cholesky_inverse(f(t, 3)), SpecError, ("cholesky_inverse", "[3]")),
    "multi_dot of 0-d": (lambda t: t.linalg.multi_dot([f(t), f(t, 1)]), SpecError, ("tensor 0", "2D or 1D", "0D")),
    "linear by 0-d": (lambda t: t.nn.functional.linear(f(t, 2), f(t)), SpecError, ("linear", "[2]", "[]")),
    "round": (lambda t: i(t, 15).round(decimals=-1), NotImplementedError, ("decimals=-1", "int64")),
    "ldexp": (lambda t: t.ldexp(f(t, 2), 3), TypeError, ("ldexp", "3")),
    "div_ floor": (lambda t: i(t, 5).div_(2.0, rounding_mode="floor"), SpecError, ("float32", "int64")),
    "div_ of bools": (lambda t: t.tensor([True]).div_(t.tensor([3]), rounding_mode="floor"), SpecError, ("int64", "bool")),
    "div_ trunc": (lambda t: i(t, 5).div_(f(t, 1), rounding_mode="trunc"), SpecError, ("float32", "int64")),
    "square_": (lambda t: (i(t, 1) > 0).square_(), SpecError, ("int64", "bool")),
    **{f"{name} keepdim": (lambda t, n=name: getattr(t, n)(f(t, 2), keepdim=True), TypeError, (name, "keepdim=True"))
       for name in ("max", "min", "prod", "median", "nanmedian")},
    "max of two keepdim": (lambda t: t.max(f(t, 2), f(t, 2), keepdim=True), TypeError, ("max", "keepdim=True")),
    "randint": (lambda t: t.randint(0, 300, (2,), dtype=t.uint8), RuntimeError, ("299", "uint8", "0 to 255")),
    "randint below": (lambda t: t.randint(-1, 3, (2,), dtype=t.uint8), RuntimeError, ("-1", "uint8", "0 to 255")),
    "randint of bools": (lambda t: t.randint(0, 3, (2,), dtype=t.bool), RuntimeError, ("2", "bool", "0 to 1")),
    "randint of halves": (lambda t: t.randint(0, 70000, (2,), dtype=t.float16), RuntimeError, ("69999", "float16")),
    "random_": (lambda t: t.zeros(2, dtype=t.int8).random_(0, 129), RuntimeError, ("128", "int8", "-128 to 127")),
    **{f"{name} of {value} as {dtype}": (
        lambda t, c=call, v=value, d=dtype: c(t, v, getattr(t, d)), RuntimeError, (shown, dtype))
       for name, call in (("tensor", lambda t, v, d: t.tensor([0, v], dtype=d)),
                          ("full", lambda t, v, d: t.full((2,), v, dtype=d)),
                          ("fill_", lambda t, v, d: t.zeros(2, dtype=d).fill_(v)),
                          ("masked_fill", lambda t, v, d: t.zeros(2, dtype=d).masked_fill(t.tensor([True, False]), v)))
       for value, shown, dtype in ((float("nan"), "nan", "int32"), (float("inf"), "inf", "int64"), (1e30, "1e+30", "int64"),
                                   (300.5, "300.5", "uint8"), (-1.5, "-1.5", "uint8"))},
    "tensor far beyond": (lambda t: t.tensor(2**70), ValueError, ("int64", str(2**70))),
    "fill_ beyond int64": (lambda t: i(t, 1).fill_(2**63), RuntimeError, ("int64", str(2**63))),
    "unflatten": (lambda t: f(t, 6).unflatten(0, (2, 2)), SpecError, ("[2, 2]", "dim 0 (6)")),
    "unflatten of what is empty": (lambda t: f(t, 6, 0).unflatten(0, (5, 1)), SpecError, ("[5, 1]", "dim 0 (6)")),
    "unflatten to nothing": (lambda t: f(t, 1).unflatten(0, ()), SpecError, ("non-empty",)),
    "alpha True": (lambda t: t.add(f(t, 1), f(t, 1), alpha=True), RuntimeError, ("Boolean alpha", "True", "float32")),
    **{f"{name} of bools": (
        lambda t, n=name: getattr(t.tensor([True]), n)(t.tensor([True])), NotImplementedError, (name, "bool"))
       for name in ("floor_divide", "remainder", "fmod", "bitwise_left_shift", "bitwise_right_shift")},
    "div of bools": (lambda t: t.div(t.tensor([True]), True, rounding_mode="trunc"), NotImplementedError, ("'trunc'", "bool")),
    "scatter_reduce of bools": (lambda t: t.tensor([True]).scatter_reduce(0, i(t, 0), t.tensor([True]), "mean"),
                                NotImplementedError, ("mean", "bool")),
    "repeat_interleave of floats": (lambda t: f(t, 2).repeat_interleave(f(t, 2)), SpecError, ("integers", "float32[2]")),
    "pad by a parameter": (lambda t: t.nn.functional.pad(f(t, 2), (1, 1), value=t.tensor(3.0, requires_grad=True)), TypeError,
                           ("number", "requires a gradient")),
    "pad by a vector": (lambda t: t.nn.functional.pad(f(t, 2), (1, 1), value=f(t, 1)), TypeError, ("number", "float32[1]")),
    "repeat_interleave of another size": (lambda t: f(t, 2).repeat_interleave(3, output_size=7), SpecError,
                                          ("expected 6", "got 7")),
    "repeat_interleave negative": (lambda t: f(t, 2).repeat_interleave(i(t, 1, -2)), SpecError, ("negative", "-2")),
    "repeat_interleave of a matrix": (lambda t: t.repeat_interleave(i(t, 1, 2).reshape(1, 2)), SpecError, ("1-d", "[1, 2]")),
    "masked_scatter dtype": (lambda t: f(t, 2).masked_scatter(f(t, 2) > 0, i(t, 1, 2)), SpecError, ("float32", "int64")),
    "cosine_similarity": (lambda t: t.nn.functional.cosine_similarity(i(t, 1), i(t, 1), 0), SpecError, ("floating", "int64")),
    "batch_norm of halves": (lambda t: t.nn.functional.batch_norm(
        f(t, 2, 3).half(), f(t, 3), f(t, 3), f(t, 3).half(), f(t, 3).half(), True), SpecError, ("float16", "float32")),
    "gather by a number": (lambda t: t.gather(f(t, 2), 0, 3), TypeError, ("gather", "3", "int")),
    "index_select by a list": (lambda t: t.index_select(f(t, 2), 0, [1]), TypeError, ("index_select", "[1]", "list")),
    "stack of numbers": (lambda t: t.stack([1, 2]), TypeError, ("stack", "1", "int")),
    "cross_entropy of None": (lambda t: t.nn.functional.cross_entropy(f(t, 2, 3), None), TypeError, ("cross_entropy", "None")),
    "nll_loss by a list": (lambda t: t.nn.functional.nll_loss(f(t, 2), [0]), TypeError, ("nll_loss", "[0]", "list")),
    "relu of a number": (lambda t: t.nn.functional.relu(3), TypeError, ("relu", "int")),
    "tril by a tensor": (lambda t: t.tril(f(t, 2, 2), f(t, 2, 2)), TypeError, ("tril", "'diagonal'", "int, not Tensor")),
    "triu by a float": (lambda t: f(t, 2, 2).triu(1.5), TypeError, ("triu", "'diagonal'", "int, not float")),
    "tril_ by several": (lambda t: f(t, 2, 2).tril_(i(t, 1, 2)), TypeError, ("tril", "'diagonal'", "int, not Tensor")),
    "roll by a tensor": (lambda t: f(t, 2, 3).roll(f(t, 2, 3), (0, 1)), TypeError, ("roll", "'shifts'", "ints, not Tensor")),
    "roll by a float": (lambda t: t.roll(f(t, 2), 1.5, 0), TypeError, ("roll", "'shifts'", "ints, not float")),
    "nan_to_num by a name": (lambda t: f(t, 2, 2).nan_to_num("a"), TypeError, ("nan_to_num", "'nan'", "float, not str")),
    "nan_to_num by several": (lambda t: f(t, 2).nan_to_num(0.0, f(t, 2)), TypeError, ("nan_to_num", "'posinf'", "not Tensor")),
    "tril of a number": (lambda t: t.tril(3), TypeError, ("tril", "int")),
    "normal": (lambda t: t.normal(f(t, 2), t.tensor([1.0, -0.5])), RuntimeError, ("std >= 0.0", "-0.5")),
    "normal of a number": (lambda t: t.normal(0.0, -f(t, 2)), RuntimeError, ("std >= 0.0", "-1.0")),
    "multi_margin_loss weight": (lambda t: t.nn.functional.multi_margin_loss(f(t, 2, 3), i(t, 0, 1), weight=f(t, 2)), SpecError,
                                 ("expected [3]", "got [2]")),
    "relu of bools": (lambda t: t.relu(t.tensor([True])), SpecError, ("relu", "bool")),
    "addcmul of numbers": (lambda t: t.addcmul(f(t, 2), 0, 0), TypeError, ("addcmul", "int")),
    "repeat": (lambda t: f(t, 2, 3).repeat(2), SpecError, ("(2,)", "[2, 3]")),
    "repeat negative": (lambda t: f(t, 2).repeat(-1), SpecError, ("negative dimension", "(-1,)")),
    "repeat_interleave": (lambda t: f(t, 3).repeat_interleave(i(t, 1, 2)), SpecError, ("repeats.size(0) = 2", "= 3")),
    "movedim": (lambda t: f(t, 2, 3).movedim((0, 1), (0,)), SpecError, ("(0, 1)", "(0,)")),
    "split": (lambda t: f(t, 3).split([4, -1]), SpecError, ("non-negative", "[4, -1]")),
    "as_strided": (lambda t: f(t, 3).as_strided((-1,), (1,)), SpecError, ("as_strided", "sizes [-1]")),
    "tensor_split": (lambda t: f(t, 3).tensor_split(0), SpecError, ("larger than 0, got 0",)),
    "hsplit": (lambda t: f(t, 2, 3).hsplit(2), SpecError, ("dimension 1", "3 is not divisible by the split_size 2")),
    "matrix_power": (lambda t: t.linalg.matrix_power(f(t, 2, 3), 1), SpecError, ("square matrices", "[2, 3]")),
    "diff": (lambda t: t.diff(t.tensor(1.0)), SpecError, ("at least one-dimensional",)),
    "diff order": (lambda t: f(t, 3).diff(-1), RuntimeError, ("non-negative but got -1",)),
    "gradient": (lambda t: t.gradient(f(t, 3, 1)), SpecError, ("at least edge_order+1", "[3, 1]")),
    "gradient edges": (lambda t: t.gradient(f(t, 3), edge_order=3), SpecError, ("edge_order", "got 3")),
    "gradient dims": (lambda t: t.gradient(f(t, 3, 3), dim=(1, -1)), SpecError, ("multiple times", "(1, -1)")),
    "gradient spacing": (lambda t: t.gradient(f(t, 3, 3), spacing=[1.0]), SpecError, ("2 dimensions, but got 1",)),
    "histc": (lambda t: t.histc(i(t, 2, 1) > 0, 4), SpecError, ("a tensor of numbers", "bool[2]")),
    "histc bins": (lambda t: t.histc(f(t, 3), 0), SpecError, ("bins must be > 0, but got 0",)),
    "histc range": (lambda t: t.histc(f(t, 3), 4, 2, 1), SpecError, ("max must be larger than min, but got 1 and 2",)),
    "bincount": (lambda t: t.bincount(f(t, 3)), SpecError, ("1-d non-negative integral inputs", "float32[3]")),
    "bincount negative": (lambda t: i(t, 2, -1).bincount(), SpecError, ("but got -1",)),
    "bincount weights": (lambda t: i(t, 2, 1).bincount(f(t, 3)), SpecError, ("same length", "[3]", "[2]")),
    "bincount minlength": (lambda t: i(t, 2, 1).bincount(minlength=-1), SpecError, ("minlength should be >= 0", "got -1")),
    "quantile": (lambda t: f(t, 3).quantile(1.5), RuntimeError, ("[0, 1]", "1.5")),
    "quantiles": (lambda t: f(t, 3).quantile(t.tensor([0.5, -0.1])), RuntimeError, ("[0, 1]", "-0.1")),
    "quantile of NaN": (lambda t: f(t, 3).quantile(t.tensor(math.nan)), RuntimeError, ("[0, 1]", "nan")),
    "quantile of none": (lambda t: f(t, 0).quantile(0.5), SpecError, ("non-empty",)),
    "quantile of ints": (lambda t: i(t, 2).quantile(0.5), SpecError, ("float or double", "int64")),
    "quantile between": (lambda t: f(t, 3).quantile(0.5, interpolation="cubic"), RuntimeError, ("midpoint", "cubic")),
    "quantile of matrices": (lambda t: f(t, 3).quantile(f(t, 1, 1)), SpecError, ("scalar or 1D", "[1, 1]")),
    "H": (lambda t: f(t, 2, 2, 2).H, RuntimeError, ("matrices", "3-D")),
    "meshgrid": (lambda t: t.meshgrid(f(t, 2, 2), indexing="ij"), SpecError, ("0D or 1D", "[[2, 2]]")),
    "meshgrid indexing": (lambda t: t.meshgrid(f(t, 2), indexing="ji"), RuntimeError, ("received: ji",)),
    "diagonal": (lambda t: f(t, 2, 3).diagonal(0, 1, -1), SpecError, ("cannot be identical", "[2, 3]")),
    "diag": (lambda t: f(t, 2, 3, 4).diag(), SpecError, ("1D or 2D", "3D")),
    "trace": (lambda t: f(t, 2).trace(), SpecError, ("expected a matrix", "dim 1")),
    "unfold": (lambda t: f(t, 3).unfold(0, 4, 1), SpecError, ("dimension 0 is 3", "size is 4")),
    "unfold step": (lambda t: f(t, 3).unfold(0, 2, 0), SpecError, ("step is 0 but must be > 0",)),
    "gather": (lambda t: f(t, 2, 3).gather(1, i(t, 0)), SpecError, ("same number of dimensions", "1 and 2")),
    "gather size": (lambda t: f(t, 2, 3).gather(1, i(t, 0, 0, 0).reshape(3, 1)), SpecError, ("[3, 1]", "[2, 3]")),
    "gather outside": (lambda t: f(t, 3).gather(0, i(t, 3)), IndexError, ("3", "size 3")),
    "gather negative": (lambda t: f(t, 3).gather(0, i(t, -1)), IndexError, ("-1", "size 3")),
    "index_select negative": (lambda t: f(t, 3).index_select(0, i(t, 0, -1)), IndexError, ("-1", "size 3")),
    "scatter negative": (lambda t: f(t, 3).scatter(0, i(t, -1), 1.0), IndexError, ("-1", "size 3")),
    "scatter_add negative": (lambda t: f(t, 3).scatter_add(0, i(t, -1), f(t, 1)), IndexError, ("-1", "size 3")),
    "index_add negative": (lambda t: f(t, 3).index_add(0, i(t, -1), f(t, 1)), IndexError, ("-1", "size 3")),
    "index_copy negative": (lambda t: f(t, 3).index_copy(0, i(t, -1), f(t, 1)), IndexError, ("-1", "size 3")),
    "embedding of a vector": (lambda t: t.nn.functional.embedding(i(t, 1), f(t, 3)), SpecError, ("must be 2-D", "[3]")),
    "embedding_bag offsets": (lambda t: t.nn.functional.embedding_bag(i(t, 1), f(t, 3, 2), i(t, 0, 1).view(2, 1)), ValueError,
                              ("offsets has to be a 1D tensor", "int64[2, 1]")),
    "embedding_bag float offsets": (lambda t: t.nn.functional.embedding_bag(i(t, 1, 0), f(t, 3, 2), f(t, 1) * 0), ValueError,
                                    ("offsets has to be a 1D tensor of integers", "float32[1]")),
    "embedding negative": (lambda t: t.nn.functional.embedding(i(t, 1, -1), f(t, 3, 2)), IndexError, ("-1", "size 3")),
    "nll_loss negative": (lambda t: t.nn.functional.nll_loss(f(t, 2, 3), i(t, 0, -1)), IndexError, ("-1", "size 3")),
    "multi_margin_loss negative": (lambda t: t.nn.functional.multi_margin_loss(f(t, 2, 3), i(t, 0, -1)), IndexError,
                                   ("-1", "size 3")),
    "gather by floats": (lambda t: f(t, 3).gather(0, f(t, 1)), SpecError, ("integers", "float32")),
    "scatter": (lambda t: f(t, 3).scatter(0, i(t, 0, 1), f(t, 1)), SpecError, ("index [2]", "src [1]")),
    "scatter outside": (lambda t: f(t, 3).scatter(0, i(t, 7), 1.0), IndexError, ("7", "size 3")),
    "scatter type": (lambda t: f(t, 3).scatter(0, i(t, 0), i(t, 1)), SpecError, ("float32 and int64",)),
    "scatter expanded": (lambda t: f(t, 1).expand(3).scatter_(0, i(t, 0), 1.0), SpecError, ("single memory location",)),
    "index_add": (lambda t: f(t, 3, 2).index_add(0, i(t, 0, 1), f(t, 3, 2)), SpecError, ("[3, 2]", "2 slices")),
    "index_add matrix": (lambda t: f(t, 3).index_add(0, i(t, 0, 1).reshape(1, 2), f(t, 2)), SpecError, ("vector", "[1, 2]")),
    "index_fill": (lambda t: f(t, 3).index_fill(0, i(t, 0), f(t, 2)), SpecError, ("0-dimensional", "1 dimension")),
    "masked_select": (lambda t: f(t, 3).masked_select(i(t, 0, 1, 1)), SpecError, ("BoolTensor", "int64")),
    "masked_scatter": (lambda t: f(t, 3).masked_scatter(f(t, 3) > 0, f(t, 2)), SpecError, ("at least 3 elements", "2")),
    "pad": (lambda t: t.nn.functional.pad(f(t, 2), (1,)), SpecError, ("(1,)", "[2]")),
    "pad cut": (lambda t: t.nn.functional.pad(f(t, 2), (-3, 0)), SpecError, ("-3 and 0", "dimension 0")),
    "pad mode": (lambda t: t.nn.functional.pad(f(t, 2), (1, 1), "mirror"), NotImplementedError, ("mirror",)),
    "pad reflect": (lambda t: t.nn.functional.pad(f(t, 1, 2), (2, 0), "reflect"), SpecError, ("(2, 0)", "of 2 elements")),
    "pad dims": (lambda t: t.nn.functional.pad(f(t, 2), (1, 1), "reflect"), NotImplementedError, ("non-constant",)),
    "F.unfold": (lambda t: t.nn.functional.unfold(f(t, 3, 3), 2), SpecError, ("3D or 4D", "[3, 3]")),
    "F.unfold dilation": (lambda t: t.nn.functional.unfold(f(t, 1, 1, 4, 4), 2, -1), SpecError, ("dilation (-1, -1)",)),
    "F.fold stride": (lambda t: t.nn.functional.fold(f(t, 1, 4, 4), 3, 2, stride=0), SpecError, ("stride (0, 0)",)),
    "F.fold padding": (lambda t: t.nn.functional.fold(f(t, 1, 4, 4), 5, 2, padding=-1), SpecError, ("padding (-1, -1)",)),
    "avg_pool2d of nothing": (lambda t: t.nn.functional.avg_pool2d(f(t, 1, 2, 0, 4), 2, padding=1), SpecError, ("[2, 0, 4]",)),
    "max_pool1d of nothing": (lambda t: t.nn.functional.max_pool1d(f(t, 2, 0), 2, padding=1), SpecError, ("[2, 1, 0]",)),
    "allclose": (lambda t: t.allclose(f(t, 2, 3), f(t, 4)), SpecError, ("tensor a (3)", "tensor b (4)")),
    "F.fold": (lambda t: t.nn.functional.fold(f(t, 1, 4, 3), 3, 2), SpecError, ("2 * 2", "[1, 4, 3]")),
    "topk": (lambda t: f(t, 3).topk(4), SpecError, ("selected index k out of range", "4 of 3")),
    "kthvalue": (lambda t: f(t, 3).kthvalue(0), SpecError, ("out of range for dimension -1", "0 of 3")),
    "median": (lambda t: f(t, 0, 2).median(0), SpecError, ("reduction dim 0", "non-zero size")),
    "var of ints": (lambda t: i(t, 1, 2).var(), SpecError, ("var", "int64")),
    "cumsum dim": (lambda t: f(t, 2).cumsum(1), DimError, ("[-1, 0]", "but got 1")),
    "renorm": (lambda t: f(t, 2, 2).renorm(2, 0, float("nan")), SpecError, ("maxnorm that is not negative", "nan")),
    "norm of ints": (lambda t: i(t, 1).norm(), SpecError, ("norm", "int64")),
    "outer": (lambda t: t.outer(f(t, 2), f(t, 2, 2)), SpecError, ("1-D", "[2] and [2, 2]")),
    "addmm": (lambda t: t.addmm(f(t, 3), f(t, 2, 2), f(t, 2, 2)), SpecError, ("expanded size", "[2, 2]", "[3]")),
    "tensordot": (lambda t: t.tensordot(f(t, 2, 3), f(t, 2, 3), 1), SpecError, ("[3]", "[2]", "need to match")),
    "einsum operands": (lambda t: t.einsum("ij,jk", f(t, 2, 2)), SpecError, ("'ij,jk'", "2 operands, but got 1")),
    "einsum dims": (lambda t: t.einsum("ijk", f(t, 2, 2)), SpecError, ("'ijk'", "[2, 2]")),
    "einsum sizes": (lambda t: t.einsum("ij,jk", f(t, 2, 3), f(t, 2, 3)), SpecError, ("subscript j has size 2", "size 3")),
    "einsum output": (lambda t: t.einsum("ij->ik", f(t, 2, 3)), SpecError, ("'k'", "'ij->ik'")),
    "einsum repeated": (lambda t: t.einsum("ii", f(t, 2, 3)), SpecError, ("subscript i is repeated", "2 and 3")),
    "inv": (lambda t: t.linalg.inv(f(t, 2, 3)), SpecError, ("square matrices", "[2, 3]")),
    "inv of ints": (lambda t: t.linalg.inv(i(t, 1).reshape(1, 1)), SpecError, ("int64",)),
    "inv singular": (lambda t: t.linalg.inv(f(t, 2, 2)), LinAlgError, ("linalg.inv", "Singular", "[2, 2]")),
    "solve singular": (lambda t: t.linalg.solve(f(t, 2, 2), f(t, 2)), LinAlgError, ("linalg.solve", "[2, 2]")),
    "solve_triangular": (lambda t: t.linalg.solve_triangular(f(t, 2, 2), f(t, 2), upper=True), SpecError, ("[2, 2]", "[2]")),
    "solve": (lambda t: t.linalg.solve(f(t, 2, 2), f(t, 3, 1)), SpecError, ("float32[2, 2]", "float32[3, 1]")),
    "cholesky": (lambda t: t.linalg.cholesky(-t.eye(2)), LinAlgError, ("linalg.cholesky", "positive definite")),
    "cholesky of NaN": (lambda t: t.linalg.cholesky(t.eye(2) * np.nan), LinAlgError, ("linalg.cholesky", "positive definite")),
    "cross": (lambda t: t.linalg.cross(f(t, 2), f(t, 2)), SpecError, ("must have length 3. Got 2",)),
    "matrix_norm": (lambda t: t.linalg.matrix_norm(f(t, 2, 2), 1, dim=(0, 0)), SpecError, ("must be different", "(0, 0)")),
    "conv1d": (lambda t: t.nn.functional.conv1d(f(t, 2, 5, 3), f(t, 4, 3, 3)), SpecError,
               ("Given groups=1, weight of size [4, 3, 3], expected input[2, 5, 3] to have 3 channels, but got 5",)),
    "conv1d weight": (lambda t: t.nn.functional.conv1d(f(t, 2, 3, 5), f(t, 4, 3)), SpecError,
                      ("conv1d: expected weight [O, C / groups, k], but got [4, 3]",)),
    "conv2d groups": (lambda t: t.nn.functional.conv2d(f(t, 2, 4, 5, 5), f(t, 3, 2, 3, 3), groups=2), SpecError,
                      ("Given groups=2, expected weight to be divisible by 2 at dimension 0, but got weight of size [3, 2",)),
    "multi_dot": (lambda t: t.linalg.multi_dot([f(t, 2)]), SpecError, ("at least 2 tensors but got 1",)),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", CASES)
def test_what_torch_refuses_is_refused_with_what_was_given(name: str, torch: Any) -> None:
    refused_by_both(CASES[name], torch)


#: What PyTorch has and gradcore has not implemented: an error says so, and no result is wrong.
MISSING: dict[str, Case] = {
    "writing to windows": (lambda t: f(t, 4).unfold(0, 2, 1).fill_(1.0), SpecError, ("single memory location",)),
    "scatter multiply": (lambda t: f(t, 2).scatter(0, i(t, 0), 2.0, reduce="multiply"), NotImplementedError, ("'multiply'",)),
    "fill_diagonal_": (lambda t: f(t, 3, 2).fill_diagonal_(1.0, wrap=True), NotImplementedError, ("[3, 2]", "wrap=True")),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_says_so(name: str) -> None:
    call, kind, texts = MISSING[name]
    with raises(kind, *texts):
        call(gradcore)


def test_coordinates_that_do_not_fit_are_refused() -> None:
    """PyTorch computes something with them."""
    with raises(SpecError, "3 coordinates for dimension 0", "[4]"):
        gradcore.gradient(f(gradcore, 3), spacing=[f(gradcore, 4)])

"""Functions composed of ops: meta's log, the values of a compiled call, and errors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.errors import DimError, SpecError
from tests import forms_composed, forms_gathered, forms_layers, forms_networks, forms_special
from tests.conftest import raises
from tests.forms import Form
from tests.host.ops.test_form_errors import Case, f, i, refused_by_both
from tests.logs import normalized

#: Functions that read values on the host, return no tensor, or draw random numbers.
ELSEWHERE = ("unique_consecutive", "Tensor.unique_consecutive", "is_nonzero", "is_same_size", "is_signed", "is_complex")
#: Functions that return their argument unchanged, without an op.
UNCHANGED = ("alpha_dropout", "feature_alpha_dropout", "cartesian_prod:one")
#: Calls with operands, which determine the device of their results.
FORMS = [form for part in (forms_composed, forms_gathered, forms_layers, forms_networks, forms_special)
         for form in part.FORMS if form.operands and form.function not in ELSEWHERE]


def run(form: Form, device: str) -> tuple[list[Any], list[Any]]:
    """Shapes and dtypes of a call's results, and the log of the call and of its gradient, from an empty pool."""
    wanted, arrays = form.wanted(), form.values(np.float32)
    gradcore.empty_cache(device)
    with gradcore.step(device=device) as s:
        inputs = [gradcore.tensor(v, device=device, requires_grad=k in wanted) for k, v in enumerate(arrays)]
        results = form.made(gradcore, inputs)
        found = [(tuple(y.shape), y.dtype) for y in results]
        whole = [y.sum() for y in results if y.requires_grad]
        if whole:
            gradcore.autograd.backward(whole)
        del results, whole, inputs
    return found, s.raw_log


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_meta_writes_the_log_that_numpy_writes(form: Form) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        (ours, log), (predicted, other) = run(form, "cpu"), run(form, "meta")
    assert ours == predicted
    for record, expected in zip(normalized(log), normalized(other), strict=True):
        assert record == expected


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_compiled_call_has_the_values_of_an_eager_one(form: Form) -> None:
    arrays = form.values(np.float32)
    compiled = gradcore.compile(lambda *xs: tuple(form.made(gradcore, list(xs))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for _ in range(3):
            # Different numbers in each call, which must not affect the next one.
            arrays = [a if a.dtype != np.float32 else (a * np.float32(0.9)) for a in arrays]
            expected = form.made(gradcore, [gradcore.tensor(a) for a in arrays])
            found = compiled(*[gradcore.tensor(a) for a in arrays])
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert len(compiled.programs) == (form.name not in UNCHANGED)


#: PyTorch raises errors for these too.
CASES: dict[str, Case] = {
    "xlogy": (lambda t: t.xlogy(2, 3), TypeError, ("2 and 3",)),
    "xlogy_": (lambda t: i(t, 1).xlogy_(i(t, 1)), SpecError, ("xlogy_", "float32", "int64")),
    "float_power_": (lambda t: f(t, 2).float_power_(2), SpecError, ("float_power_", "float64", "float32")),
    "heaviside": (lambda t: t.heaviside(f(t, 2), i(t, 1, 2)), SpecError, ("different dtypes", "float32", "int64")),
    "logaddexp2": (lambda t: t.logaddexp2(i(t, 1), i(t, 1)), SpecError, ("floating", "int64")),
    "cdist columns": (lambda t: t.cdist(f(t, 2, 3), f(t, 2, 2)), SpecError, ("X1: 3 X2: 2",)),
    "cdist vector": (lambda t: t.cdist(f(t, 3), f(t, 2, 3)), SpecError, ("at least 2D", "X1 got: 1D")),
    "cdist p": (lambda t: t.cdist(f(t, 2, 3), f(t, 2, 3), -1), SpecError, ("non-negative",)),
    "cdist ints": (lambda t: t.cdist(i(t, 1)[None], i(t, 1)[None]), SpecError, ("floating-point", "int64")),
    "cdist types": (lambda t: t.cdist(f(t, 1, 1), f(t, 1, 1).double()), SpecError, ("float32", "float64")),
    "cdist mode": (lambda t: t.cdist(f(t, 1, 1), f(t, 1, 1), compute_mode="fast"), ValueError, ("fast",)),
    "pdist": (lambda t: t.nn.functional.pdist(f(t, 3)), SpecError, ("2D", "1D")),
    "pdist p": (lambda t: t.nn.functional.pdist(f(t, 3, 2), -1), SpecError, ("non-negative",)),
    "searchsorted rows": (lambda t: t.searchsorted(f(t, 1, 2), f(t, 2, 2)), SpecError, ("[1, 2]", "[2, 2]")),
    "searchsorted side": (lambda t: t.searchsorted(f(t, 2), 1.0, side="top"), SpecError, ("'left' or 'right'", "top")),
    "searchsorted sides": (lambda t: t.searchsorted(f(t, 2), 1.0, side="left", right=True), SpecError, ("opposites",)),
    "searchsorted sorter": (lambda t: t.searchsorted(f(t, 2), 1.0, sorter=i(t, 0)), SpecError, ("same size", "[1]")),
    "bucketize": (lambda t: t.bucketize(f(t, 2), f(t, 2, 2)), SpecError, ("1 dimension", "dim(2)")),
    "frexp": (lambda t: t.frexp(i(t, 1)), SpecError, ("only supports floating-point", "int64")),
    "nextafter": (lambda t: t.nextafter(i(t, 1), i(t, 1)), (SpecError, NotImplementedError), ("nextafter",)),
    "nextafter of a number": (lambda t: t.nextafter(f(t, 1), 2.0), TypeError, ("must be Tensor, not float",)),
    "sum_to_size": (lambda t: f(t, 2, 3).sum_to_size(2), SpecError, ("size {[2]} is not expandable to size {[2, 3]}.",)),
    "unravel_index of floats": (lambda t: t.unravel_index(f(t, 1), (2,)), TypeError, ("integer dtype", "float32")),
    "unravel_index by a float": (lambda t: t.unravel_index(i(t, 1), 2.5), TypeError, ("int or sequence", "float")),
    "unravel_index by floats": (lambda t: t.unravel_index(i(t, 1), (2.0,)), TypeError, ("only contain ints", "float")),
    "unravel_index below 0": (lambda t: t.unravel_index(i(t, 1), (2, -1)), ValueError, ("negative", "(2, -1)")),
    "unravel_index of nothing": (lambda t: t.unravel_index(i(t, 1), (0, 2)), RuntimeError, ("ZeroDivisionError",)),
    "isin": (lambda t: t.isin(f(t, 2) > 0, f(t, 2) > 0), SpecError, ("Bool",)),
    "isin of numbers": (lambda t: t.isin(1, 2), TypeError, ()),
    "is_nonzero": (lambda t: t.is_nonzero(f(t, 2)), RuntimeError, ("ambiguous",)),
    "logcumsumexp": (lambda t: t.logcumsumexp(i(t, 1), 0), SpecError, ("int64",)),
    "cummax": (lambda t: t.cummax(f(t, 2), 1), DimError, ("but got 1",)),
    "cov": (lambda t: t.cov(f(t, 1, 1, 1)), SpecError, ("two or fewer", "3 dimensions")),
    "cov of bools": (lambda t: t.cov(f(t, 2) > 0), SpecError, ("bool",)),
    "cov counts": (lambda t: t.cov(f(t, 1, 2), fweights=f(t, 2)), SpecError, ("fweights", "float32")),
    "cov weights": (lambda t: t.cov(f(t, 1, 2), aweights=f(t, 3)), SpecError, ("aweights", "2 observations", "[3]")),
    "corrcoef": (lambda t: t.corrcoef(f(t, 1, 1, 1)), SpecError, ("corrcoef", "3 dimensions")),
    "trapezoid": (lambda t: t.trapezoid(f(t, 2, 3), f(t, 2)), SpecError, ("one `x` value", "2 for 3")),
    "trapezoid 0d": (lambda t: t.trapezoid(f(t)), DimError, ("no dimensions",)),
    "trapezoid both": (lambda t: t.trapezoid(f(t, 2), f(t, 2), dx=1), TypeError, ()),
    "mode": (lambda t: t.mode(f(t, 2, 0), 1), DimError, ("non-zero size",)),
    "nanmedian": (lambda t: t.nanmedian(f(t, 0), 0), DimError, ("non-zero size",)),
    "block_diag": (lambda t: t.block_diag(f(t, 1, 1, 1)), SpecError, ("Input 0", "3 dimensions")),
    "cartesian_prod": (lambda t: t.cartesian_prod(f(t, 2, 2)), SpecError, ("1D vector", "[2, 2]")),
    "cartesian_prod types": (lambda t: t.cartesian_prod(f(t, 2), i(t, 1)), SpecError, ("same dtype", "int64")),
    "combinations": (lambda t: t.combinations(f(t, 2, 2)), SpecError, ("1D vector", "[2, 2]")),
    "combinations negative": (lambda t: t.combinations(f(t, 2), -1), SpecError, ("non-negative", "-1")),
    "vander": (lambda t: t.vander(f(t, 2, 2)), SpecError, ("one-dimensional", "[2, 2]")),
    "vander negative": (lambda t: t.vander(f(t, 2), -1), SpecError, ("non-negative", "-1")),
    "select_scatter": (lambda t: t.select_scatter(f(t, 2, 3), f(t, 2), 0, 0), SpecError, ("select_scatter", "[2]", "[3]")),
    "slice_scatter": (lambda t: t.slice_scatter(f(t, 4), f(t, 3), 0, 0, 2), SpecError, ("slice_scatter", "[3]", "[2]")),
    "diagonal_scatter": (lambda t: t.diagonal_scatter(f(t, 2, 2), f(t, 3)), SpecError, ("diagonal_scatter", "[3]", "[2]")),
    "scatter_reduce": (lambda t: f(t, 2).scatter_reduce(0, i(t, 0), f(t, 1), "median"), SpecError, ("amax", "got median")),
    "scatter_reduce types": (lambda t: f(t, 2).scatter_reduce(0, i(t, 0), f(t, 1).double(), "prod"), SpecError,
                             ("same dtype", "src float64")),
    "scatter_reduce of a number": (lambda t: f(t, 2).scatter_reduce(0, i(t, 0), 2.0, "prod"), TypeError, ("src", "not float")),
    "index_reduce": (lambda t: f(t, 2).index_reduce(0, i(t, 0), f(t, 1), "sum"), SpecError, ("amax", "got sum")),
    "index_reduce slices": (lambda t: f(t, 2).index_reduce(0, i(t, 0, 1), f(t, 1), "prod"), DimError, ("[1]", "2 slices")),
    "max_pool3d": (lambda t: t.nn.functional.max_pool3d(f(t, 2, 2), 1), SpecError, ("4D or 5D", "[2, 2]")),
    "avg_pool3d": (lambda t: t.nn.functional.avg_pool3d(f(t, 1, 2, 2, 2), 3), SpecError, ("too small",)),
    "avg_pool3d padding": (lambda t: t.nn.functional.avg_pool3d(f(t, 1, 4, 4, 4), 2, 2, 2), SpecError, ("pad should be",)),
    "avg_pool3d kernel": (lambda t: t.nn.functional.avg_pool3d(f(t, 1, 4, 4, 4), (1, 2)), SpecError, ("kernel_size", "(1, 2)")),
    "local_response_norm": (lambda t: t.nn.functional.local_response_norm(f(t, 2, 2), 2), ValueError, ("2 dimensions",)),
    "conv_transpose3d": (lambda t: t.nn.functional.conv_transpose3d(f(t, 2, 2), f(t, 2, 2)), SpecError, ("4D", "[2, 2]")),
    "conv_transpose3d channels": (lambda t: t.nn.functional.conv_transpose3d(f(t, 2, 1, 1, 1), f(t, 3, 1, 1, 1, 1)), SpecError,
                                  ("[3, 1, 1, 1, 1]", "2 channels")),
    "conv_transpose3d extra": (lambda t: t.nn.functional.conv_transpose3d(f(t, 1, 1, 1, 1), f(t, 1, 1, 1, 1, 1),
                               output_padding=1), SpecError, ("output padding must be smaller", "(1, 1, 1)")),
    "grid_sample": (lambda t: t.nn.functional.grid_sample(f(t, 1, 1, 2, 2), f(t, 1, 2, 2, 3), align_corners=False), SpecError,
                    ("[1, 2, 2, 3]",)),
    "grid_sample mode": (lambda t: t.nn.functional.grid_sample(f(t, 1, 1, 2, 2), f(t, 1, 2, 2, 2), "cubic"), ValueError,
                         ("'cubic'",)),
    "grid_sample of volumes": (lambda t: t.nn.functional.grid_sample(
        f(t, 1, 1, 2, 2, 2), f(t, 1, 2, 2, 2, 3), "bicubic", align_corners=True), SpecError,
        ("bicubic", "only supports 4D", "[1, 1, 2, 2, 2]")),
    "grid_sample padding": (lambda t: t.nn.functional.grid_sample(f(t, 1, 1, 2, 2), f(t, 1, 2, 2, 2), padding_mode="wrap"),
                            ValueError, ("'wrap'",)),
    "grid_sample of nothing": (lambda t: t.nn.functional.grid_sample(f(t, 1, 1, 0, 2), f(t, 1, 2, 2, 2), align_corners=False),
                               SpecError, ("non-empty", "[1, 1, 0, 2]")),
    "affine_grid": (lambda t: t.nn.functional.affine_grid(f(t, 1, 2, 2), (1, 1, 2, 2), False), SpecError,
                    ("1x2x3", "[1, 2, 2]")),
    "affine_grid ints": (lambda t: t.nn.functional.affine_grid(i(t, 1), (1, 1, 2, 2), False), ValueError,
                         ("floating", "int64")),
    "affine_grid size": (lambda t: t.nn.functional.affine_grid(f(t, 1, 2, 3), (1, 1, 0, 2), False), ValueError,
                         ("(1, 1, 0, 2)",)),
    "affine_grid dims": (lambda t: t.nn.functional.affine_grid(f(t, 1, 2, 3), (1, 1, 2), False), NotImplementedError,
                         ("4D and 5D", "(1, 1, 2)")),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", CASES)
def test_what_torch_refuses_is_refused_with_what_was_given(name: str, torch: Any) -> None:
    refused_by_both(CASES[name], torch)


def test_a_range_has_to_arrive() -> None:
    with raises(SpecError, "inconsistent with step sign: 0, 3, -1"):
        gradcore.range(0, 3, -1)
    assert gradcore.range(0, 1, 0.25).tolist() == [0, 0.25, 0.5, 0.75, 1] and gradcore.range(2, 2).tolist() == [2]
    assert gradcore.range(5, 0, -2, dtype=gradcore.int64).tolist() == [5, 3, 1]


def test_what_is_in_a_run_is_read_on_the_host() -> None:
    with raises(gradcore.DataDependentShape, "unique_consecutive"):
        gradcore.unique_consecutive(gradcore.zeros(3, device="meta"))


def test_a_stack_takes_no_op_for_each_tensor() -> None:
    """Each batch of a DataLoader is a stack, and so is what a loop over time steps has made."""
    rows = [gradcore.ones(2, 3, requires_grad=True) for _ in range(20)]
    for dim in (0, 1, -2):
        assert len(gradcore.graph(gradcore.stack(rows, dim)).nodes) == 2

"""In-place methods on bools, integers and floats: PyTorch's result, or an error where PyTorch raises one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.missing import torch_names

VALUES: dict[str, Any] = {"bool": [[True, False], [False, True]], "uint8": [[1, 2], [3, 0]], "int64": [[1, -2], [3, 0]],
                          "float32": [[0.5, -1.0], [2.0, 0.0]], "float64": [[0.25, -1.0], [2.0, 0.0]]}
#: Draws, and what changes no element.
OTHER = {"bernoulli_", "cauchy_", "detach_", "exponential_", "geometric_", "log_normal_", "normal_", "random_",
         "requires_grad_", "share_memory_", "uniform_"}
NAMES = sorted(name for name in torch_names()["Tensor"] - OTHER if name.endswith("_") and hasattr(gradcore.Tensor, name))
#: Where numbers are taken in place of a tensor, as docs/pytorch.md says, or compared exactly beside uint8.
NUMBERS = {"arctan2_", "atan2_", "hypot_", "logical_and_", "logical_or_", "logical_xor_"}
COMPARISONS = {f"{name}_" for name in "ge gt le lt less less_equal greater greater_equal".split()}


def arguments(lib: Any) -> Iterator[tuple[Any, ...]]:
    """Of methods without an argument, with a number or a tensor, with two tensors, and with slices at an index."""
    made = {name: lib.tensor(value, dtype=getattr(lib, name)) for name, value in VALUES.items()}
    yield ()
    yield from ((number,) for number in (True, 2, 1.5, -1))
    yield from ((x,) for x in made.values())
    yield from ((x, y) for name, x in made.items() for y in (x, made["float32"]))
    yield from ((0, lib.tensor([0, 1]), x) for x in made.values())


def outcome(lib: Any, dtype: str, name: str, args: tuple[Any, ...]) -> tuple[str, Any] | str:
    x = lib.tensor(VALUES[dtype], dtype=getattr(lib, dtype))
    try:
        made = getattr(x, name)(*args)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return "an error"
    assert made is x
    return str(x.dtype).removeprefix("torch."), x.numpy()


def differs(name: str, dtype: str, args: tuple[Any, ...]) -> bool:
    """Does gradcore take what PyTorch does not, or differ from it, on purpose?"""
    if len(args) == 2:
        # Any truth value is taken for non_blocking, bounds may be a tensor and a number, autocast adds 16 bits to 32.
        return name in ("copy_", "clamp_", "clip_") or (name == "addmm_" and dtype.startswith("float"))
    if not args or len(args) > 1:
        return False
    if not isinstance(args[0], (bool, int, float)):
        return name == "ldexp_" and "bool" in str(args[0].dtype)
    return (name in NUMBERS or (name in COMPARISONS and dtype == "uint8")
            or (name in ("polygamma_", "logit_", "pow_") and args[0] is True))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_an_in_place_method_does_what_pytorchs_does(name: str, torch: Any) -> None:
    for dtype in VALUES:
        for ours, theirs in zip(arguments(gradcore), arguments(torch), strict=True):
            found, wanted = outcome(gradcore, dtype, name, ours), outcome(torch, dtype, name, theirs)
            if (isinstance(found, str) and isinstance(wanted, str)) or differs(name, dtype, theirs):
                continue
            assert isinstance(found, tuple) and isinstance(wanted, tuple), (dtype, ours, found, wanted)
            assert found[0] == wanted[0]
            np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5, atol=1e-6, err_msg=f"{dtype} {ours}")


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["pow_", "floor_divide_", "remainder_", "fmod_"])
@pytest.mark.parametrize("dims", [(3, 3), (3, 1), (0, 0)])
def test_a_wider_operand_is_computed_with_as_it_is(name: str, dims: tuple[int, int], torch: Any) -> None:
    """The bytes of -3 and 256 are other numbers in the dtype of the tensor that is written to."""
    for dtype in (np.uint8, np.int8):
        for given in (-3, 256, 2):
            x, y = np.full(dims[:1] if dims[0] else (), 5, dtype), np.full(dims[1:] if dims[1] else (), given, np.int16)
            ours, theirs = (getattr(lib.tensor(x), name)(lib.tensor(y)).numpy() for lib in (gradcore, torch))
            np.testing.assert_array_equal(ours, theirs, err_msg=f"{np.dtype(dtype)} {given}")

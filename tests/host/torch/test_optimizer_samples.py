"""PyTorch's own samples of optimizers: what its tests construct them with gives the same steps here, or is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from tests.host.torch.test_samples import ours, registered

#: Where steps in float64 are not equal to all digits, and why.
SINGLE = {"ASGD": "PyTorch keeps its rates in single precision", "Muon": "the step is computed in bfloat16",
          "NAdam": "PyTorch keeps products of momenta in single precision"}
#: What PyTorch refuses, or warns of, and is otherwise here.
OTHERWISE = {"duplicate parameters": "parameters that are given twice are an error",
             "as a Tensor is not supported for capturable=False": "a rate or beta may be a tensor in all updates",
             "must be either both floats or both Tensors": "one of two betas may be a tensor"}

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


def steps(library: Any, make: Any, cls: Any, options: Any, dtype: str) -> tuple[list[Any], Any]:
    """The parameters after six steps, the third with gradients of zeros, the fourth without one of them; and the optimizer."""
    random = np.random.default_rng(0)
    shapes = [(3, 4), (10, 5), (6, 6)] if cls.__name__ == "Muon" else [(3, 4), (4,), (2, 3, 3, 3), (), (10,)]
    params = [make(random.standard_normal(s).astype(dtype)).requires_grad_() for s in shapes]
    optimizer = cls(params, **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum(((p - 1) ** 2).sum() for p in params)
        loss.backward()
        return loss

    for k in range(6):
        for p in params:
            p.grad = make(random.standard_normal(p.shape).astype(dtype) * (k != 2))
        params[1].grad = None if k == 3 else params[1].grad
        optimizer.step(*[closure] * (cls.__name__ == "LBFGS"))
    return params, optimizer


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_optimizers(torch: Any, dtype: str) -> None:
    compared = 0
    for info in registered("common_optimizers", "optim_db"):
        name = info.optim_cls.__name__
        cls = getattr(gradcore.optim, name, None)
        tolerance = (1e-5, 1e-5) if dtype == "float32" or name in SINGLE else (1e-10, 1e-12)
        for given in info.optim_inputs_func(device="cpu") if cls else ():
            theirs, their = steps(torch, torch.tensor, info.optim_cls, given.kwargs, dtype)
            mine, own = steps(gradcore, gradcore.tensor, cls, ours(given.kwargs, [], torch), dtype)
            for a, b in zip(theirs, mine, strict=True):
                np.testing.assert_allclose(b.numpy(force=True), a.numpy(force=True), *tolerance, err_msg=f"{name} {given}")
            states = their.state_dict(), own.state_dict()
            groups, kept = zip(*[(s["param_groups"], s["state"]) for s in states], strict=True)
            assert groups[0][0].keys() == groups[1][0].keys(), name
            # PyTorch's LBFGS keeps a list of its last loop.
            assert [*kept[0]] == [*kept[1]] and all(kept[0][k].keys() - {"al"} == kept[1][k].keys() for k in kept[0]), name
            compared += 1
    assert compared > 70


def test_what_optimizers_refuse(torch: Any) -> None:
    refused, other = 0, set()
    for info in registered("common_optimizers", "optim_db"):
        cls = getattr(gradcore.optim, info.optim_cls.__name__, None)
        for error in info.optim_error_inputs_func("cpu", torch.float32) if cls else ():
            made: list[Any] = []
            given = error.optimizer_error_input
            why = next((words for words in OTHERWISE if words in error.error_regex.replace("\\", "")), None)
            try:
                params = gradcore.zeros(2) if given.params is None else ours(given.params, made, torch)
                optimizer = cls([params] if given.params is None else params, **ours(given.kwargs, made, torch))
                if "STEP" in error.error_on.name:
                    optimizer.step()
                assert why is not None, f"{info.optim_cls.__name__} takes {given.kwargs}: {error.error_regex}"
            except LookupError:
                # Of complex numbers.
                continue
            except (TypeError, ValueError) as raised:
                assert why is not None or isinstance(raised, error.error_type), f"{raised!r}, not {error.error_regex}"
            refused += why is None
            other.add(why)
    assert refused > 60 and other == {None, *OTHERWISE}

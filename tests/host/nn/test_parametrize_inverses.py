"""What right_inverse of a parametrization may give, and what a list of parametrizations tells: as in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

import gradcore
from gradcore.nn.utils import parametrize
from tests.conftest import raises


def part_of(library: Any, forward: Any = lambda x: x, inverse: Any = None) -> Any:
    """A parametrization of these functions; ``inverse=None`` makes it one without ``right_inverse``."""

    class Part(library.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, *xs: Any) -> Any:
            return forward(*xs)

    if inverse is not None:
        Part.right_inverse = lambda self, x: inverse(x)
    return Part()


def unknown(x: Any) -> Any:
    raise NotImplementedError("there is none")


def found(library: Any) -> list[Any]:
    tools = library.nn.utils.parametrize
    results: list[Any] = []
    for unsafe in (False, True):
        for inverse in (lambda x: 3, lambda x: [x, 3], lambda x: x.double()):
            net = library.nn.Linear(2, 2)
            with pytest.raises(ValueError, match="right_inverse"):
                tools.register_parametrization(net, "weight", part_of(library, inverse=inverse), unsafe=unsafe)
            assert type(net) is library.nn.Linear and not tools.is_parametrized(net)
    for inverse in (lambda x: 3, lambda x: x.double(), lambda x: x[:1]):
        net = library.nn.Linear(2, 2)
        tools.register_parametrization(net, "weight", part_of(library, inverse=lambda x: x))
        with pytest.raises(ValueError):
            tools.register_parametrization(net, "weight", part_of(library, inverse=inverse))
        tools.register_parametrization(net, "weight", part_of(library, inverse=inverse), unsafe=True)
        parts = net.parametrizations.weight
        results.append((len(parts), parts.unsafe, parts.is_tensor, parts.ntensors))
    for inverse in (lambda x: (x, x, x), None, unknown):
        net = library.nn.Linear(2, 2).eval()
        part = part_of(library, lambda x, *rest: 2 * x, inverse)
        tools.register_parametrization(net, "weight", part)
        parts = net.parametrizations.weight
        results.append((parts.unsafe, parts.is_tensor, parts.ntensors, part.training, sorted(parts.state_dict())))
    return results


def test_inverses_that_give_no_tensors_are_refused() -> None:
    assert found(gradcore)[0] == (2, True, True, 1)
    assert found(gradcore)[-1] == (False, True, 1, False, ["original"])


@pytest.mark.oracle
def test_inverses_are_checked_as_pytorchs(torch: Any) -> None:
    assert found(gradcore) == found(torch)


def test_what_gradcore_lacks_in_an_inverse_is_told() -> None:
    net = gradcore.nn.Linear(2, 2)
    part = part_of(gradcore, inverse=lambda x: x.conj())
    with raises(NotImplementedError, "Tensor.conj is not implemented by gradcore"):
        parametrize.register_parametrization(net, "weight", part)


@pytest.mark.oracle
@pytest.mark.parametrize("apart", [False, True])
def test_attention_tells_whether_its_projections_are_one(torch: Any, apart: bool) -> None:
    """By a name with which code for PyTorch chooses how to call multi_head_attention_forward."""
    ours, theirs = (library.nn.MultiheadAttention(4, 2, kdim=3 if apart else None) for library in (gradcore, torch))
    assert ours._qkv_same_embed_dim is theirs._qkv_same_embed_dim is not apart

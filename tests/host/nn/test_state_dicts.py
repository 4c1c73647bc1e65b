"""State dicts of modules: what loading copies or takes over, what it refuses, and what the bytes are attributed to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from tests.conftest import raises
from tests.host.nn.test_nn import net, tag


def test_load_state_dict_copies_into_the_same_bytes() -> None:
    a, b = net(), net()
    storage = b[0].weight.storage
    assert str(b.load_state_dict(a.state_dict())) == "<All keys matched successfully>"
    assert b[0].weight.storage is storage
    np.testing.assert_array_equal(b[0].weight.detach().numpy(), a[0].weight.detach().numpy())


def test_a_state_dict_may_lack_the_number_of_batches() -> None:
    m = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    state = {k: v for k, v in m.state_dict().items() if not k.endswith("num_batches_tracked")}
    m(gradcore.ones(4, 3))
    m.load_state_dict(state)
    assert m[0].num_batches_tracked.item() == 1
    del state["1.bias"]
    with raises(RuntimeError, 'Missing key(s) in state_dict: "1.bias".'):
        m.load_state_dict(state)
    with raises(RuntimeError, '"0.num_batches_tracked", "1.bias"'):
        m.to("meta").load_state_dict(state, assign=True)


def test_load_state_dict_lists_everything_and_changes_nothing() -> None:
    m = net()
    state = {k: v.numpy() + 1 for k, v in m.state_dict().items()}
    del state["3.bias"]
    state["extra"] = np.zeros(1)
    state["0.weight"] = np.zeros((2, 2))
    before = m[3].weight.detach().numpy().copy()
    with raises(RuntimeError, "Error(s) in loading state_dict for Sequential:",
                'Missing key(s) in state_dict: "3.bias". ', 'Unexpected key(s) in state_dict: "extra". ',
                "size mismatch for 0.weight: copying a param with shape", "[2, 2]", "the shape in current model is",
                "[5, 6]"):
        m.load_state_dict(state)
    np.testing.assert_array_equal(m[3].weight.detach().numpy(), before)
    with raises(RuntimeError, "size mismatch for 0.weight"):
        m.load_state_dict(state, strict=False)
    del state["0.weight"]
    missing, unexpected = m.load_state_dict(state, strict=False)
    assert missing == ["0.weight", "3.bias"] and unexpected == ["extra"]
    np.testing.assert_array_equal(m[3].weight.detach().numpy(), before + 1)
    with raises(TypeError, "Expected state_dict to be dict-like"):
        m.load_state_dict([])


def test_parameters_that_take_over_values_lose_their_gradients() -> None:
    m = nn.Linear(3, 2)
    m(gradcore.ones(1, 3)).sum().backward()
    m.load_state_dict({k: v.double() for k, v in m.state_dict().items()}, assign=True)
    assert m.weight.grad is None and m.bias.grad is None
    m(gradcore.ones(1, 3, dtype=gradcore.float64)).sum().backward()
    assert m.weight.grad.dtype == gradcore.float64


def test_what_is_taken_over_is_put_down_to_the_module() -> None:
    m = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(2)).to("meta")
    m[0].add_module("none", None)
    m(gradcore.ones(3, 2, device="meta"))
    m.load_state_dict({f"1.{name}": x for name, x in nn.BatchNorm1d(2).state_dict().items()}, assign=True)
    assert {(tag(x).role, tag(x).layer) for x in m.parameters()} == {("parameter", "1")}
    assert {(tag(x).role, tag(x).layer) for x in m.buffers()} == {("buffer", "1")} and m[1].weight.tolist() == [1, 1]


def test_values_are_numbers() -> None:
    with raises(TypeError, "state_dict['bias'] must be a tensor or an array of numbers, but got str"):
        nn.Linear(1, 1).load_state_dict({"bias": "ab"})


def older_files(library: Any) -> Any:
    """What modules load from files of older versions and spellings, and which version their own state dicts have."""
    norm = library.nn.BatchNorm1d(2)
    state = {**norm.state_dict(), "num_batches_tracked": library.tensor([3])}
    norm.load_state_dict(state)
    layer = library.nn.utils.parametrizations.weight_norm(library.nn.Linear(2, 3))
    nested = library.nn.Sequential(layer)
    older = {"0.weight_g": library.ones(3, 1), "0.weight_v": library.ones(3, 2) * 2, "0.bias": library.zeros(3)}
    nested.load_state_dict(older)
    with pytest.raises(RuntimeError, match=r"parametrizations\.weight\.original1"):
        nested.load_state_dict({key: older[key] for key in ("0.weight_g", "0.bias")})
    metadata = library.nn.Sequential(norm, library.nn.InstanceNorm1d(2), library.nn.Linear(1, 1)).state_dict()._metadata
    weight = library.round(layer.weight, decimals=4).tolist()
    return norm.num_batches_tracked.item(), weight, list(older), metadata


def test_files_of_older_versions_are_loaded() -> None:
    count, weight, kept, metadata = older_files(gradcore)
    assert count == 3 and np.allclose(weight, 0.5 ** 0.5, atol=1e-4) and kept == ["0.weight_g", "0.weight_v", "0.bias"]
    assert [dict(m) for m in metadata.values()] == [{"version": n} for n in (1, 2, 2, 1)]


@pytest.mark.oracle
def test_files_of_older_versions_are_loaded_as_by_pytorch(torch: Any) -> None:
    assert older_files(gradcore) == older_files(torch)


def test_a_weight_norm_that_is_removed_renames_nothing() -> None:
    """The older one may have come in its place; and an error names the keys that were given."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 3))
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    older = {"weight_g": gradcore.ones(3, 1), "weight_v": gradcore.ones(3, 2), "bias": gradcore.zeros(3)}
    with raises(RuntimeError, 'Missing key(s) in state_dict: "weight"', 'Unexpected key(s)', '"weight_g", "weight_v"'):
        layer.load_state_dict(older)
    nn.utils.weight_norm(layer)
    assert str(layer.load_state_dict(older)) == "<All keys matched successfully>" and layer.weight_v.tolist() == [[1, 1]] * 3


def test_a_hook_after_loading_returns_nothing() -> None:
    m = nn.Linear(1, 1)
    m.register_load_state_dict_post_hook(lambda module, keys: keys)
    with raises(AssertionError, "not expected to return"):
        m.load_state_dict(m.state_dict())

"""Names of tensors' methods, and PyTorch's old classes of tensors: ``FloatTensor`` and others."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore._classes import WORDS
from gradcore.errors import DeviceError
from tests.conftest import raises

#: Calls whose results and errors are compared; those of uninitialized memory by their shape.
CALLS: dict[str, Any] = {
    "nothing": lambda t: t.FloatTensor(),
    "sizes": lambda t: t.FloatTensor(2, 3).shape,
    "a Size": lambda t: t.LongTensor(t.Size([2, 0])),
    "size=": lambda t: t.FloatTensor(size=(2, 3)).shape,
    "NumPy's size": lambda t: t.FloatTensor(np.int64(2), 3).shape,
    "a tuple": lambda t: t.FloatTensor((2, 3)),
    "a list": lambda t: t.ByteTensor([1, 255]),
    "lists": lambda t: t.LongTensor([[1, 2], [3, 4]]),
    "a range": lambda t: t.FloatTensor(range(3)),
    "an array": lambda t: t.FloatTensor(np.arange(3.0)),
    "an empty list": lambda t: t.IntTensor([]),
    "floats as integers": lambda t: t.LongTensor([1.5, -1.5]),
    "bools": lambda t: t.BoolTensor([1, 0, 2]),
    "tensors in a list": lambda t: t.DoubleTensor([t.tensor(1.0), t.tensor(2.0)]),
    "a tensor": lambda t: t.FloatTensor(t.ones(2)),
    "another tensor": lambda t: t.FloatTensor(t.tensor([1, 2])),
    "a number": lambda t: t.FloatTensor(3.0),
    "text": lambda t: t.FloatTensor("ab"),
    "two lists": lambda t: t.FloatTensor([1], [2]),
    "meta": lambda t: t.FloatTensor([1.0], device="meta"),
    "new of a list": lambda t: t.tensor([1]).new([1, 2]),
    "new of sizes": lambda t: t.ones(1).new(3, 2).shape,
    "new of a size": lambda t: t.ones(1).double().new(t.Size([2])).dtype.itemsize,
    "new of an array": lambda t: t.ones(1).new(np.arange(3)),
    "new of another tensor": lambda t: t.ones(1).new(t.tensor([1])),
    "Tensor of a number": lambda t: t.Tensor(2.5),
    "Tensor of a range": lambda t: t.Tensor(range(2)),
    "type by a class": lambda t: t.tensor([1.5]).type(t.LongTensor),
    "type by its name": lambda t: t.tensor([1]).type("torch.DoubleTensor"),
    "to no other device": lambda t: t.ones(1).to(None, dtype=t.float64),
    "type by Tensor": lambda t: (t.ones(2) > 0).type(t.Tensor),
    "type's name": lambda t: t.zeros(1).type(t.HalfTensor).type(),
    "instances": lambda t: [
        isinstance(t.ones(1), kind) for kind in (t.FloatTensor, t.LongTensor, t.cuda.FloatTensor, t.Tensor)],
    "shapes made of Sizes": lambda t: [(type(found).__name__, tuple(found)) for s in [t.ones(2, 3).shape] for found in (
        s + (1,), (1,) + s, s * 2, 2 * s, s * np.int64(2), s * np.array([2, 3]), s[1:], t.broadcast_shapes(s, (4, 1, 1)),
        t.distributions.Normal(t.zeros(2), 1.0)._extended_shape((5,)))],
    "a number is none": lambda t: isinstance(1.0, t.FloatTensor),
    "text of a class": lambda t: f"{t.FloatTensor} {t.cuda.ByteTensor}",
    "a leaf": lambda t: t.FloatTensor([1.0]).requires_grad}


def outcome(call: Any, t: Any) -> Any:
    try:
        found = call(t)
    except (TypeError, RuntimeError, ValueError) as error:
        return next(c for c in type(error).__mro__ if c.__module__ == "builtins")
    return (str(found.dtype).rpartition(".")[2], tuple(found.shape), found.tolist()) if isinstance(found, t.Tensor) else found


@pytest.mark.oracle
@pytest.mark.parametrize("name", CALLS)
def test_a_class_makes_tensors_as_pytorchs_does(name: str, torch: Any) -> None:
    assert outcome(CALLS[name], gradcore) == outcome(CALLS[name], torch)


@pytest.mark.parametrize("word", WORDS)
def test_each_class_has_its_dtype(word: str) -> None:
    kind = getattr(gradcore, f"{word}Tensor")
    x = kind([0, 1])
    assert x.dtype == kind.dtype == WORDS[word] and isinstance(x, kind) and x.type() == f"torch.{word}Tensor"
    assert x.type(kind) is x and copy.deepcopy(kind) is kind


def test_a_class_of_a_gpu_asks_for_one() -> None:
    if gradcore.cuda.is_available():
        assert gradcore.cuda.FloatTensor([1.0]).device.type == "cuda"
        return
    with raises(DeviceError, "cuda is not available"):
        gradcore.cuda.FloatTensor([1.0])
    with raises(DeviceError, "cuda is not available"):
        gradcore.ones(1).type("torch.cuda.FloatTensor")


def test_the_default_class() -> None:
    try:
        gradcore.set_default_tensor_type("torch.DoubleTensor")
        assert gradcore.zeros(1).dtype == gradcore.Tensor(1).dtype == gradcore.float64
    finally:
        gradcore.set_default_tensor_type(gradcore.FloatTensor)
    assert gradcore.zeros(1).dtype == gradcore.float32
    for wrong in (gradcore.LongTensor, "torch.QuantumTensor", 3):
        with pytest.raises(TypeError):
            gradcore.set_default_tensor_type(wrong)


def test_operators_have_their_names() -> None:
    """As in errors, and in pickles of functions."""
    others = ("__class__", "__dir__")
    assert [name for name in dir(gradcore.Tensor) if name.startswith("__") and name not in others
            and getattr(getattr(gradcore.Tensor, name), "__name__", name) != name] == []
    with raises(TypeError, "Operators.__lt__() missing 1 required positional argument"):
        gradcore.Tensor.__lt__(gradcore.ones(1))
    for name in ("__add__", "__rpow__", "__iadd__", "__ixor__"):
        method = getattr(gradcore.Tensor, name)
        assert pickle.loads(pickle.dumps(method)) is method

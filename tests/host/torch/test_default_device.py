"""The device of tensors created without one: ``with device:`` and ``set_default_device``, as in PyTorch."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.utils.data import DataLoader, TensorDataset
from tests.conftest import raises

MAKE: dict[str, Any] = {
    "tensor": lambda t: t.tensor([1.0]), "as_tensor of a list": lambda t: t.as_tensor([1.0]),
    "as_tensor of an array": lambda t: t.as_tensor(np.ones(2)), "asarray": lambda t: t.asarray([1.0]),
    "scalar_tensor": lambda t: t.scalar_tensor(1.0), "zeros": lambda t: t.zeros(2), "ones": lambda t: t.ones(2),
    "empty": lambda t: t.empty(2), "full": lambda t: t.full((2,), 1.0), "arange": lambda t: t.arange(3),
    "eye": lambda t: t.eye(2),
    "linspace": lambda t: t.linspace(0, 1, 3), "logspace": lambda t: t.logspace(0, 1, 3), "range": lambda t: t.full((2,), 3),
    "tril_indices": lambda t: t.tril_indices(2, 2), "triu_indices": lambda t: t.triu_indices(2, 2), "rand": lambda t: t.rand(2),
    "randn": lambda t: t.randn(2), "randint": lambda t: t.randint(3, (2,)), "randperm": lambda t: t.randperm(3),
    "Linear": lambda t: t.nn.Linear(2, 3).weight,
    "BatchNorm1d": lambda t: t.nn.BatchNorm1d(2).running_mean, "LSTM": lambda t: t.nn.LSTM(2, 3).weight_ih_l0,
    "MultiheadAttention": lambda t: t.nn.MultiheadAttention(4, 2).in_proj_weight, "PReLU": lambda t: t.nn.PReLU().weight,
    "a device that is named": lambda t: t.zeros(2, device="cpu"), "from_numpy": lambda t: t.from_numpy(np.ones(2)),
    "a copy": lambda t: t.zeros(2, device="cpu").clone(), "cpu()": lambda t: t.zeros(2, device="cpu").cpu(),
    "zeros_like": lambda t: t.zeros_like(t.zeros(2, device="cpu")),
    "rand_like": lambda t: t.rand_like(t.zeros(2, device="cpu")),
    "new_zeros": lambda t: t.zeros(2, device="cpu").new_zeros(3), "Generator": lambda t: t.Generator()}


@pytest.mark.oracle
@pytest.mark.parametrize("name", MAKE)
def test_places_are_pytorchs(name: str, torch: Any) -> None:
    places = []
    for library in (gradcore, torch):
        with library.device("meta") as entered:
            places.append(MAKE[name](library).device.type)
            assert library.get_default_device() == entered
        assert MAKE[name](library).device.type == "cpu"
        library.set_default_device("meta")
        try:
            places.append(MAKE[name](library).device.type)
        finally:
            library.set_default_device(None)
    assert len(set(places)) == 1


def test_the_inner_one_counts_and_what_fails_leaves_it() -> None:
    with gradcore.device("meta"):
        with pytest.raises(KeyError), gradcore.device("cpu"):
            assert gradcore.zeros(1).device == "cpu"
            raise KeyError
        assert gradcore.zeros(1).device == "meta" != gradcore.zeros(1, device="cpu").device
    assert gradcore.get_default_device() == "cpu"


def test_it_is_a_threads_own() -> None:
    found = []
    with gradcore.device("meta"):
        other = threading.Thread(target=lambda: found.append(gradcore.get_default_device()))
        other.start()
        other.join()
    assert found == [gradcore.device("cpu")]


def test_a_device_that_is_not_there_changes_nothing() -> None:
    with raises(gradcore.DeviceError, "nowhere"):
        gradcore.set_default_device("nowhere")
    assert gradcore.get_default_device() == "cpu"


def test_a_compiled_function_is_traced_again_elsewhere() -> None:
    @gradcore.compile
    def made() -> Any:
        return gradcore.zeros(2) + 1

    for device in ("cpu", "meta", "cpu", "meta"):
        with gradcore.device(device):
            assert made().device == made().device == device
    assert len(made.traces) == 2


def test_training_on_another_device_names_none() -> None:
    """The network and its batch are on the device; the loader's own tensors are not."""
    with gradcore.device("meta"):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2))
        optimizer = gradcore.optim.Adam(model.parameters())
        samples = TensorDataset(gradcore.rand(6, 4), gradcore.randint(2, (6,)))
        batches = DataLoader(samples, batch_size=3, shuffle=True)
        for x, y in batches:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert {p.device for p in model.parameters()} == {gradcore.device("meta")}


@pytest.mark.oracle
def test_device_is_a_class_whose_instances_are_devices(torch: Any) -> None:
    for t in (gradcore, torch):
        assert isinstance(t.device, type) and isinstance(t.zeros(1).device, t.device) and not isinstance("cpu", t.device)
        assert t.device("cpu", 0).type == t.device(type="cpu").type == t.device(t.device("cpu")).type == "cpu"
        assert t.device("meta") == t.zeros(1, device="meta").device and t.device("meta").index is None
        with raises(RuntimeError, "type (string) must not include an index"):
            t.device("cpu:0", 0)
        for missing in (lambda t=t: t.zeros(1, device=t.device("cuda", 7)), lambda t=t: t.zeros(1, device=t.device(7))):
            with pytest.raises((RuntimeError, AssertionError)):
                missing()


def test_a_copy_of_a_device_is_the_device() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.device = gradcore.device("cpu")

    for name in ("cpu", "meta"):
        d = gradcore.device(name)
        assert copy.deepcopy(d) is d and copy.copy(d) is d and pickle.loads(pickle.dumps(d)) is d
    assert copy.deepcopy(Placed()).device is gradcore.device("cpu")


@pytest.mark.parametrize("fast", [False, True])
def test_gradgradcheck_works_on_the_device_of_its_inputs(fast: bool) -> None:
    with gradcore.device("meta"):
        x = gradcore.tensor([0.5, 2.0], dtype=gradcore.float64, device="cpu", requires_grad=True)
        assert gradcore.autograd.gradgradcheck(lambda x: x ** 3, [x], fast_mode=fast)

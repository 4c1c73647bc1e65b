"""Modules: what they own, under which names, and the layers that their bytes are attributed to."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import _random, nn
from gradcore.errors import SpecError
from gradcore.nn import functional as F
from gradcore.nn import init
from tests.conftest import raises


def tag(x: Any) -> Any:
    return x.storage.block.tag


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4)), nn.Linear(4, 3))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("scale", gradcore.ones(3))
        self.register_buffer("scratch", gradcore.zeros(1), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.fc(x) * self.scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(3, 2, bias=False)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


# -- what a module has -------------------------------------------------------------------------------------------------


def test_names() -> None:
    m = Model()
    assert [n for n, _ in m.named_parameters()] == [
        "blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.1.fc.weight", "blocks.1.fc.bias", "head.weight"]
    assert [n for n, _ in m.named_modules()] == ["", "blocks", "blocks.0", "blocks.0.fc", "blocks.1", "blocks.1.fc",
                                                 "head"]
    assert [n for n, _ in m.named_children()] == ["blocks", "head"]
    assert [n for n, _ in m.named_buffers()] == ["blocks.0.scale", "blocks.0.scratch", "blocks.1.scale",
                                                 "blocks.1.scratch"]
    assert list(m.state_dict()) == ["blocks.0.scale", "blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.1.scale",
                                    "blocks.1.fc.weight", "blocks.1.fc.bias", "head.weight"]
    assert len(list(m.modules())) == 7 and len(list(m.buffers())) == 4
    assert m.get_submodule("blocks.1.fc") is m.blocks[1].fc
    with raises(AttributeError, "ModuleList has no attribute `7`"):
        m.get_submodule("blocks.7.fc")


def test_a_shared_module_comes_once_in_parameters_and_twice_in_the_state_dict() -> None:
    fc = nn.Linear(2, 2)
    m = nn.Sequential(fc, fc)
    assert [n for n, _ in m.named_parameters()] == ["0.weight", "0.bias"]
    assert list(m.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_parameters_wrap_the_same_bytes() -> None:
    data = gradcore.ones(3)
    p = nn.Parameter(data)
    assert p.storage is data.storage and p.requires_grad and p.is_leaf and tag(p).role == "parameter"
    assert isinstance(p, gradcore.Tensor) and "Parameter containing" in repr(p)
    assert type(p * 2) is gradcore.Tensor
    assert not nn.Parameter(data, requires_grad=False).requires_grad
    with raises(TypeError, "Parameter expects a Tensor, but got list"):
        nn.Parameter([1.0])  # type: ignore[arg-type]
    with raises(RuntimeError, "floating point"):
        nn.Parameter(gradcore.tensor([1]))


def test_assignment() -> None:
    m = Block()
    weight = nn.Parameter(gradcore.ones(3, 3))
    m.fc.weight = weight
    assert m.fc._parameters["weight"] is weight and m.fc.weight is weight
    with raises(TypeError, "cannot assign 'Tensor' as parameter 'weight'", "or None expected"):
        m.fc.weight = gradcore.ones(3, 3)
    with raises(TypeError, "cannot assign 'ReLU' as parameter 'weight'"):
        m.fc.weight = nn.ReLU()
    with raises(TypeError, "cannot assign 'int' as child module 'fc'"):
        m.fc = 3
    with raises(TypeError, "cannot assign 'str' as buffer 'scale'"):
        m.scale = "wide"
    m.scale = gradcore.zeros(3)
    assert tag(m.scale).role == "buffer" and m._buffers["scale"] is m.scale
    m.fc.bias = None
    assert [n for n, _ in m.named_parameters()] == ["fc.weight"]
    del m.fc
    assert not hasattr(m, "fc") and list(m.parameters()) == []
    m.extra = 5
    m.extra = nn.ReLU()
    assert list(m._modules) == ["extra"]
    with raises(AttributeError, "gone"):
        del m.gone


def test_an_attribute_may_be_a_dict_that_raises_key_errors_for_attributes() -> None:
    class Keyed(dict[str, int]):
        __getattr__ = dict.__getitem__

    model = nn.Linear(1, 1)
    model.options = Keyed(width=3)
    assert model.options.width == 3


def test_registration_errors() -> None:
    m = nn.Module()
    with raises(KeyError, "contain", "got: a.b"):
        m.register_parameter("a.b", None)
    with raises(KeyError, "be empty string"):
        m.register_buffer("", None)
    with raises(KeyError, "forward", "already exists"):
        m.add_module("forward", nn.ReLU())
    with raises(TypeError, "cannot assign 'Tensor' object to parameter 'w'", "Parameter or None required"):
        m.register_parameter("w", gradcore.ones(1))  # type: ignore[arg-type]

    class Early(nn.Module):
        def __init__(self) -> None:
            self.fc = nn.ReLU()

    with raises(AttributeError, "cannot assign module before Module.__init__() call"):
        Early()
    with raises(NotImplementedError, 'Module [Module] is missing the required "forward" function'):
        nn.Module()(1)


def test_modes_and_gradients() -> None:
    m = net()
    assert m.eval() is m and not any(x.training for x in m.modules())
    m.train()
    assert all(x.training for x in m.modules())
    m(gradcore.ones(2, 6)).sum().backward()
    assert all(p.grad is not None for p in m.parameters())
    m.zero_grad(set_to_none=False)
    assert all(not p.grad.numpy().any() for p in m.parameters())
    m.zero_grad()
    assert all(p.grad is None for p in m.parameters())
    m.requires_grad_(False)
    assert not m(gradcore.ones(2, 6)).requires_grad
    seen: list[str] = []
    m.apply(lambda x: seen.append(type(x).__name__))
    assert seen == ["Linear", "ReLU", "Linear", "LayerNorm", "Sequential", "Linear", "Sequential"]


def test_to_changes_bytes_and_keeps_objects() -> None:
    m = Block()
    weight = m.fc.weight
    m(gradcore.ones(1, 3)).sum().backward()
    m.double()
    assert m.fc.weight is weight and weight.dtype == np.float64 and weight.grad.dtype == np.float64
    assert (tag(weight).role, tag(weight).layer) == ("parameter", "fc") and tag(weight.grad).role == "gradient"
    assert m.scale.dtype == np.float64
    assert m(gradcore.ones(1, 3, dtype=np.float64)).dtype == np.float64
    m.to("meta").to(np.float32)
    assert weight.device == "meta" and m(gradcore.zeros(4, 3, device="meta")).shape == (4, 3)
    m.to_empty(device="cpu")
    assert weight.device == "cpu" and tag(weight).role == "parameter"
    with raises(TypeError, "only accepts floating point dtypes", "int64"):
        m.to(np.int64)
    m.to(gradcore.ones(1, dtype=np.float64))
    assert weight.dtype == np.float64


def test_a_copy_is_put_down_to_the_line_that_asked_for_it() -> None:
    # And not to one of the module copy, whose frames are in between.
    made = nn.Sequential(copy.deepcopy(nn.Linear(3, 4)), nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2))
    copies = [tag(p) for p in made.parameters() if tag(p).op == "clone"]
    assert len(copies) > 2 and {t.site.file for t in copies} == {__file__}


def test_deepcopy_is_apart() -> None:
    m = net()
    m(gradcore.ones(2, 6))
    c = copy.deepcopy(m)
    assert c[0].weight is c[0]._parameters["weight"] and isinstance(c[0].weight, nn.Parameter)
    assert c[0].weight.storage is not m[0].weight.storage
    np.testing.assert_array_equal(c(gradcore.ones(2, 6)).detach().numpy(), m(gradcore.ones(2, 6)).detach().numpy())


def test_repr_is_pytorchs() -> None:
    assert repr(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Dropout(), nn.LayerNorm(3)))) == (
        "Sequential(\n  (0): Linear(in_features=2, out_features=3, bias=True)\n  (1): Sequential(\n"
        "    (0): Dropout(p=0.5, inplace=False)\n"
        "    (1): LayerNorm((3,), eps=1e-05, elementwise_affine=True, bias=True)\n  )\n)")
    assert repr(nn.ReLU(inplace=True)) == "ReLU(inplace=True)" and repr(nn.GELU()) == "GELU(approximate='none')"


def test_containers() -> None:
    s = nn.Sequential({"a": nn.Linear(2, 3), "b": nn.Tanh()})
    assert list(s.state_dict()) == ["a.weight", "a.bias"] and len(s) == 2 and isinstance(s[-1], nn.Tanh)
    assert [n for n, _ in s[:1].named_children()] == ["a"]
    items = nn.ModuleList([nn.Linear(1, 1)]).append(nn.ReLU()).insert(0, nn.Tanh())
    assert [type(m).__name__ for m in items] == ["Tanh", "Linear", "ReLU"]
    del items[0]
    items[1] = nn.Sigmoid()
    assert [f"{n} {type(m).__name__}" for n, m in items.named_children()] == ["0 Linear", "1 Sigmoid"]
    with raises(IndexError, "index 2 is out of range"):
        items[2]
    d = nn.ModuleDict({"x": nn.ReLU()})
    d["y"] = nn.Linear(1, 2)
    assert list(d) == ["x", "y"] and "y" in d and len(list(d.parameters())) == 2
    del d["x"]
    assert list(d.keys()) == ["y"]
    with raises(KeyError, "x"):
        del d["x"]


# -- initial values ----------------------------------------------------------------------------------------------------


def test_linear_starts_as_in_pytorch() -> None:
    _random.manual_seed(0)
    m = nn.Linear(100, 400)
    for p in m.parameters():
        values = p.detach().numpy()
        assert 0.095 < np.abs(values).max() <= 0.1 and abs(values.std() - 0.1 / np.sqrt(3)) < 0.003


def test_inits() -> None:
    w = gradcore.zeros(300, 200)

    def bound(fill: Any, **options: Any) -> float:
        fill(w, **options)
        return float(np.abs(w.numpy()).max())

    assert bound(init.kaiming_uniform_) == pytest.approx(np.sqrt(6 / 200), rel=1e-2)
    assert bound(init.kaiming_uniform_, mode="fan_out", nonlinearity="linear") == pytest.approx(0.1, rel=1e-2)
    assert bound(init.xavier_uniform_, gain=2.0) == pytest.approx(2 * np.sqrt(6 / 500), rel=1e-2)
    for fill, std in ((init.kaiming_normal_, np.sqrt(2 / 200)), (init.xavier_normal_, np.sqrt(2 / 500))):
        fill(w)
        assert w.numpy().std() == pytest.approx(std, rel=2e-2)
    assert bound(init.ones_) == 1 and bound(init.constant_, val=3) == 3 and bound(init.zeros_) == 0
    assert init.calculate_gain("tanh") == 5 / 3 and init.calculate_gain("leaky_relu", 0.2) == np.sqrt(2 / 1.04)
    with raises(ValueError, "Unsupported nonlinearity swish"):
        init.calculate_gain("swish")
    with raises(ValueError, "fewer than 2 dimensions"):
        init.xavier_normal_(gradcore.zeros(3))
    with raises(ValueError, "Mode both not supported"):
        init.kaiming_normal_(w, mode="both")


# -- functional --------------------------------------------------------------------------------------------------------


def test_argument_errors() -> None:
    x, t = gradcore.ones(4, 3), gradcore.tensor([0, 1, 2, 0])
    with raises(ValueError, "median is not a valid value for reduction"):
        F.cross_entropy(x, t, reduction="median")
    with raises(ValueError, "label_smoothing must be between 0.0 and 1.0. Got: 2"):
        F.cross_entropy(x, t, label_smoothing=2)
    with raises(SpecError, "Expected target size [2, 5]", "got [4]"):
        F.cross_entropy(gradcore.ones(2, 3, 5), t)
    with raises(RuntimeError, "approximate argument must be either none or tanh"):
        F.gelu(x, "erf")
    with raises(RuntimeError, "normalized_shape=[4]", "[*, 4]", "[4, 3]"):
        F.layer_norm(x, (4,))
    with raises(RuntimeError, "one_hot is only applicable to index tensor"):
        F.one_hot(x)
    with raises(ValueError, "dropout probability has to be between 0 and 1, but got -1"):
        nn.Dropout(-1)
    with pytest.warns(UserWarning, match="Implicit dimension choice for softmax"):
        F.softmax(x)
    y, v = gradcore.ones(3), gradcore.ones(2, 1)
    for call in (lambda: F.mse_loss(x, y), lambda: nn.MSELoss()(x, y), lambda: F.l1_loss(x, y), lambda: F.softmin(x),
                 lambda: nn.Softmax()(x), lambda: nn.init.kaiming_normal_(x[:0]), lambda: gradcore.corrcoef(v)):
        with pytest.warns(UserWarning) as seen:
            call()
        assert [w.filename for w in seen] == [__file__], "the line is the user's: a filter shows one warning for each"
    assert F.one_hot(t).tolist() == F.one_hot(t, 3).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_dropout_module_rests_in_eval() -> None:
    m = nn.Dropout(0.9)
    x = gradcore.ones(100)
    assert m.eval()(x) is x and (m.train()(x).numpy() == 0).sum() > 50

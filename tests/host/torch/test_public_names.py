"""What public names show of the library: no internals in ``dir()``, nor in the errors of constructors and methods."""

from __future__ import annotations

import inspect
from types import FunctionType, ModuleType
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.missing import torch_names

MODULES = {"nn.functional": nn.functional, "nn.init": nn.init, "linalg": gradcore.linalg, "special": gradcore.special,
           "autograd.graph": gradcore.autograd.graph, "cuda": gradcore.cuda, "optim": gradcore.optim}
#: They call the constructor of the layer that they become, or that they are the old name of; Identity takes any argument.
CALLING = {name for name in dir(nn) if name.startswith("LazyConv")} | {"Identity", "NLLLoss2d"}


@pytest.mark.parametrize("path", MODULES)
def test_dir_shows_what_a_module_has_for_programs(path: str) -> None:
    shown = dir(MODULES[path])
    assert not {"Any", "annotations", "np", "math", "Sequence", "SpecError", "check_probability", "elementwise", "movement",
                "upload", "promote", "normalize_dims", "get_device", "find_site"}.intersection(shown)
    assert torch_names()[path] & vars(MODULES[path]).keys() <= set(shown)
    assert set(getattr(MODULES[path], "__all__", ())) <= set(shown) and "__name__" in shown


def test_dir_shows_modules_that_are_in_a_package() -> None:
    assert {"init", "utils", "functional", "Linear"} <= set(dir(nn)) and isinstance(nn.init, ModuleType)


@pytest.mark.parametrize("kind", [value for name, value in sorted(vars(nn).items()) if name in nn.__all__
                                  and inspect.isclass(value) and issubclass(value, nn.Module) and value is not nn.Module
                                  and name not in CALLING], ids=lambda kind: kind.__name__)
def test_an_error_of_a_constructor_names_the_class_that_was_called(kind: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.__init__\(\) "):
        kind(no_such_argument=1)


@pytest.mark.oracle
@pytest.mark.parametrize("call", [lambda kind: kind(3), lambda kind: kind(size=3), lambda kind: kind(3, 4, size=3)])
def test_an_error_of_a_constructor_names_a_programs_own_class(call: Any, torch: Any) -> None:
    texts = []
    for lib in (gradcore, torch):
        with pytest.raises(TypeError) as error:
            call(type("Net", (lib.nn.Module,), {}))
        texts.append(str(error.value))
    assert texts[0] == texts[1] and texts[0].startswith("Net.__init__() ")


def test_a_base_of_a_programs_class_still_comes_before_the_constructor_of_modules() -> None:
    class Mixed(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = size

    class Own(nn.Sigmoid, Mixed):
        pass

    class Wide(nn.ReLU):
        pass

    assert Own(3).size == 3 and Wide(True).inplace and "Wide" in repr(Wide())


def test_constructors_keep_what_they_take_and_their_older_arguments() -> None:
    assert list(inspect.signature(nn.ReLU).parameters) == ["inplace"]
    assert list(inspect.signature(nn.MaxPool2d).parameters)[:2] == ["kernel_size", "stride"]
    with pytest.warns(UserWarning, match="size_average"):
        assert nn.L1Loss(size_average=False).reduction == "sum"
    assert gradcore.distributions.Bernoulli(0.5).expand((2,)).batch_shape == (2,)


def test_methods_have_the_names_that_programs_call_them_by() -> None:
    names = {name: method.__name__ for name, method in vars(gradcore.Tensor).items()
             if name.endswith("_") and not name.startswith("_") and isinstance(method, FunctionType)}
    assert {name: own for name, own in names.items() if "<" in own or own.startswith("_")} == {}
    for name in ("clamp_min_", "deg2rad_", "multiply_", "div_", "clamp_"):
        with pytest.raises(TypeError, match=rf"^{name}\(\) "):
            getattr(gradcore.ones(2), name)(no_such_argument=1)
    for name in ("addbmm_", "addmm_"):
        with pytest.raises(TypeError, match=rf"^{name}\(\) takes 2 tensors, .* but got 1$"):
            getattr(gradcore.ones(2, 2), name)(gradcore.ones(2, 2))

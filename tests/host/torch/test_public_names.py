"""What public names show of the library: no internals in ``dir()``, nor in the errors of constructors and methods."""

from __future__ import annotations

import gc
import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

import pytest

import gradcore
from gradcore import nn
from gradcore.missing import torch_names

MODULES = {"nn.functional": nn.functional, "nn.init": nn.init, "linalg": gradcore.linalg, "special": gradcore.special,
           "autograd.graph": gradcore.autograd.graph, "cuda": gradcore.cuda, "optim": gradcore.optim}
#: The second is an old name of a layer, whose constructor it calls; Identity takes any argument.
CALLING = {"Identity", "NLLLoss2d"}


@pytest.mark.parametrize("path", MODULES)
def test_dir_shows_what_a_module_has_for_programs(path: str) -> None:
    shown = dir(MODULES[path])
    assert not {"Any", "annotations", "np", "math", "Sequence", "SpecError", "check_probability", "elementwise", "movement",
                "upload", "promote", "normalize_dims", "get_device", "find_site"}.intersection(shown)
    assert torch_names()[path] & vars(MODULES[path]).keys() <= set(shown)
    assert set(getattr(MODULES[path], "__all__", ())) <= set(shown) and "__name__" in shown


@pytest.mark.parametrize("path", ["", "Tensor", *MODULES])
def test_every_function_says_what_it_does(path: str) -> None:
    shown = gradcore.Tensor if path == "Tensor" else MODULES.get(path, gradcore)
    functions = {name: function for name in dir(shown) if not name.startswith("_")
                 and inspect.isfunction(function := getattr(shown, name, None))}
    assert functions or path == "optim", "which has classes alone"
    assert [name for name, function in functions.items() if not inspect.getdoc(function)] == []


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


@pytest.mark.parametrize(("name", "call"), [
    ("device()", lambda: gradcore.device(size=1)), ("new()", lambda: gradcore.FloatTensor(length=1)),
    ("no_grad", lambda: gradcore.no_grad(1, 2)), ("enable_grad", lambda: gradcore.enable_grad(mode=True)),
    ("recompute.__init__()", lambda: gradcore.recompute()), ("svd()", lambda: gradcore.svd()), ("qr()", lambda: gradcore.qr()),
    ("svd()", lambda: gradcore.ones(2, 2).svd(full=True)), ("qr()", lambda: gradcore.ones(2, 2).qr(mode="r")),
    ("L1Unstructured.__init__()", lambda: nn.utils.prune.L1Unstructured()),
    ("RandomStructured.__init__()", lambda: nn.utils.prune.RandomStructured()),
    ("MixtureSameFamilyConstraint.__init__()", lambda: gradcore.distributions.constraints.MixtureSameFamilyConstraint())])
def test_an_error_about_arguments_names_what_was_called(name: str, call: Any) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).startswith(f"{name} ") and " _" not in str(error.value)


def test_what_svd_returns_shows_no_name_of_the_library() -> None:
    assert repr(gradcore.svd(gradcore.ones(1, 1))).startswith("USV(U=")


def test_an_event_that_its_constructor_refused_goes_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: seen.append(error.exc_value))
    with pytest.raises(TypeError):
        gradcore.cuda.Event(name="forward")  # type: ignore[call-arg]
    gc.collect()
    assert not seen

"""Bad input: one clear error that names what was given and what was expected, and nothing that stays allocated."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn, optim
from gradcore.autograd import grad, gradcheck
from gradcore.errors import DataDependentShape, DeviceError, DimError, GradcoreError, SpecError
from gradcore.nn import functional as F
from gradcore.utils.data import DataLoader
from tests.conftest import raises


def f(*shape: int, dtype: Any = np.float32, requires_grad: bool = False) -> Any:
    return gradcore.tensor(np.ones(shape, dtype), requires_grad=requires_grad)


def i(*values: int) -> Any:
    return gradcore.tensor(np.array(values, np.int64))


Case = tuple[str, Callable[[], Any], Any, tuple[str, ...]]

SHAPES: list[Case] = [
    ("add", lambda: f(2, 3) + f(2, 4), SpecError, ("size of tensor a (3) must match", "tensor b (4)", "[2, 3]", "[2, 4]")),
    ("add in place", lambda: f(3).add_(f(2, 3)), SpecError, ("output with shape [3] doesn't match the broadcast", "[2, 3]")),
    ("compare", lambda: f(2) == f(3), SpecError, ("[2]", "[3]")),
    ("where", lambda: gradcore.where(f(2) > 0, f(3), 0.0), SpecError, ("[2]", "[3]")),
    ("matmul", lambda: f(2, 3) @ f(2, 3), SpecError, ("mat1 and mat2 shapes cannot be multiplied", "[2, 3]")),
    ("matmul 0d", lambda: f() @ f(2), SpecError, ("need to be at least 1D", "0D and 1D")),
    ("matmul batch", lambda: f(2, 3, 4) @ f(3, 4, 5), SpecError, ("[2] and [3]",)),
    ("mm", lambda: gradcore.mm(f(2, 3, 4), f(4, 5)), SpecError, ("mm", "2 and 2 dimensions", "[2, 3, 4]")),
    ("bilinear", lambda: F.bilinear(f(2, 3), f(2, 4), f(3, 4)), SpecError, ("[2, 3]", "[2, 4]", "[3, 4], [out, in1, in2]")),
    ("pinv", lambda: gradcore.linalg.pinv(f(2, 2, dtype=np.int64)), SpecError, ("floating", "int64[2, 2]")),
    ("as_strided", lambda: f(4).as_strided((2,), (1, 2)), SpecError, ("sizes [2]", "strides [1, 2]")),
    ("scatter_reduce", lambda: f(3, 3).scatter_reduce(0, i(0, 0).view(1, 2), f(2), "sum"), SpecError, ("[1, 2]", "src [2]")),
    ("tril_indices", lambda: gradcore.tril_indices(-1, 2), SpecError, ("tril_indices", "-1 and 2")),
    ("broadcast_shapes", lambda: gradcore.broadcast_shapes((-2,), (1,)), SpecError, ("negative", "-2")),
    ("dot", lambda: gradcore.dot(f(3), f(2)), SpecError, ("cannot be multiplied", "3", "2")),
    ("linear", lambda: F.linear(f(2, 3), f(4, 5)), SpecError, ("linear got input [2, 3] and weight [4, 5]", "to be 5")),
    ("linear bias", lambda: F.linear(f(2, 3), f(4, 3), f(3)), SpecError, ("bias must have shape [4]", "[3]")),
    ("view", lambda: f(2, 3).view(4), SpecError, ("shape '[4]' is invalid for input of size 6",)),
    ("reshape", lambda: f(2, 3).reshape(-1, 4), SpecError, ("shape '[-1, 4]' is invalid for input of size 6",)),
    ("expand", lambda: f(2, 3).expand(4, 3), SpecError, ("expanded size", "[4, 3]", "[2, 3]")),
    ("expand shorter", lambda: f(2, 3).expand(3), SpecError, ("[2, 3]", "more dimensions", "[3]")),
    ("permute", lambda: f(2, 3).permute(0, 0), SpecError, ("(0, 0)", "[2, 3]")),
    ("permute few", lambda: f(2, 3).permute(0), SpecError, ("(0,)", "[2, 3]")),
    ("t", lambda: f(2, 3, 4).t(), SpecError, ("<= 2 dimensions", "3D")),
    ("cat", lambda: gradcore.cat([f(2, 3), f(3, 4)], 1), SpecError, ("must match except in dimension 1", "[2, 3]", "[3, 4]")),
    ("cat nothing", lambda: gradcore.cat([]), SpecError, ("non-empty list",)),
    ("cat dims", lambda: gradcore.cat([f(2), f(2, 2)]), SpecError, ("[2]", "[2, 2]")),
    ("stack", lambda: gradcore.stack([f(2), f(3)]), SpecError, ("equal size", "[2]", "[3]")),
    ("split", lambda: f(5).split([2, 2]), SpecError, ("sum exactly to 5", "[2, 2]")),
    ("split 0", lambda: f(5).split(0), SpecError, ("positive", "split_size=0")),
    ("chunk", lambda: f(5).chunk(0), SpecError, ("greater than 0", "got: 0")),
    ("narrow", lambda: f(5).narrow(0, 3, 3), SpecError, ("start (3) + length (3) exceeds dimension size (5)",)),
    ("unflatten", lambda: f(6).unflatten(0, (4, 2)), SpecError, ("[4, 2]", "6")),
    ("copy", lambda: f(2).copy_(f(3)), SpecError, ("[3]", "cannot be broadcast to [2]")),
    ("item", lambda: f(2).item(), SpecError, ("2 elements cannot be converted to Scalar",)),
    ("bool", lambda: bool(f(2)), RuntimeError, ("Boolean value of Tensor with 2 values is ambiguous",)),
    ("take_along_dim", lambda: gradcore.take_along_dim(f(2, 3), i(0), 1), SpecError, ("same number of dimensions", "2 and 1")),
    ("index_select", lambda: f(2, 3).index_select(0, i(0).reshape(1, 1)), SpecError, ("vector", "[1, 1]")),
    ("layer_norm", lambda: F.layer_norm(f(2, 3), (4,)), (SpecError, RuntimeError), ("[4]", "[2, 3]")),
    ("layer_norm weight", lambda: F.layer_norm(f(2, 3), (3,), f(2)), (SpecError, RuntimeError), ("[2]", "[3]")),
    ("mse", lambda: F.mse_loss(f(2), f(3)), UserWarning, ("target size ([3])", "input size ([2])")),
    ("negative size", lambda: gradcore.zeros(2, -1), SpecError, ("negative dimension -1", "[2, -1]")),
    ("step 0", lambda: gradcore.arange(0, 5, 0), SpecError, ("step must be nonzero",)),
    ("step sign", lambda: gradcore.arange(5, 0), SpecError, ("inconsistent with step sign", "5", "0")),
    ("argmax of nothing", lambda: f(0).argmax(), (SpecError, IndexError), ("empty tensor",)),
    ("amax of nothing", lambda: f(0, 3).amax(0), (SpecError, IndexError), ("non-zero size", "[0, 3]")),
    ("max of nothing", lambda: f(2, 0).max(1), (SpecError, IndexError), ("non-zero size", "[2, 0]")),
    ("a new dimension of -1", lambda: f(3).expand(-1, 3), SpecError, ("(-1) isn't allowed", "[3], but got [-1, 3]")),
    ("a negative size on meta", lambda: gradcore.zeros(1, device="meta").expand(-2), SpecError, ("(-2) isn't allowed",)),
    ("one dimension twice", lambda: f(2, 3).sum((0, -2)), SpecError, ("appears multiple times",)),
]
DIMS: list[Case] = [(name, call, DimError, ("Dimension out of range", "[-2, 1], but got 2")) for name, call in {
    "sum": lambda: f(2, 3).sum(2), "mean": lambda: f(2, 3).mean((0, 2)), "softmax": lambda: f(2, 3).softmax(2),
    "argmax": lambda: f(2, 3).argmax(2), "max": lambda: f(2, 3).max(2), "transpose": lambda: f(2, 3).transpose(0, 2),
    "squeeze": lambda: f(2, 3).squeeze(2), "cat": lambda: gradcore.cat([f(2, 3)], 2), "size": lambda: f(2, 3).size(2),
    "split": lambda: f(2, 3).split(1, 2), "flatten": lambda: f(2, 3).flatten(0, 2), "movedim": lambda: f(2, 3).movedim(2, 0),
    "logsumexp": lambda: f(2, 3).logsumexp(2), "index_select": lambda: f(2, 3).index_select(2, i(0)),
    "select": lambda: f(2, 3).select(2, 0), "unbind": lambda: f(2, 3).unbind(2)}.items()]
TYPES: list[Case] = [
    ("add a list", lambda: f(2) + [1, 2], TypeError, ("add", "list")),
    ("add a string", lambda: f(2) + "a", TypeError, ("add", "str")),
    ("add None", lambda: gradcore.add(f(2), None), TypeError, ("add", "'y'", "None")),
    ("add an array", lambda: gradcore.add(f(2), np.ones(2)), TypeError, ("add", "ndarray")),
    ("numbers alone", lambda: gradcore.maximum(1, 2), TypeError, ("at least one operand must be a tensor", "int, int")),
    *[(f"{name} of a number", lambda name=name: getattr(gradcore, name)(4), TypeError,
       (f"{name}(): expected tensors, but got operands int",)) for name in ("sqrt", "relu", "abs", "isnan")],
    ("complex", lambda: f(2) * 1j, TypeError, ("mul", "complex")),
    ("matmul a number", lambda: f(2, 2) @ 3, TypeError, ("matmul takes two tensors", "int")),
    ("matmul dtypes", lambda: f(2, 2) @ f(2, 2, dtype=np.float64), SpecError, ("same dtype", "float32 != float64")),
    ("linear dtypes", lambda: F.linear(f(2, 2, dtype=np.float64), f(2, 2), f(2)), SpecError,
     ("must have the same dtype, but got input float64, weight float32, bias float32",)),
    ("int gradient", lambda: i(1, 2).requires_grad_(), RuntimeError, ("only Tensors of floating point dtype", "int64")),
    ("objects to fill", lambda: gradcore.zeros(2, dtype=object), TypeError, ("dtype object", "float64 or bfloat16")),
    ("complex zeros", lambda: gradcore.zeros(2, dtype="complex64"), TypeError, ("dtype complex64", "bool, uint8")),
    ("strings of numbers", lambda: gradcore.tensor([1], dtype=str), TypeError, ("dtype <U0",)),
    ("a cast to bytes", lambda: f(2).to("S3"), TypeError, ("dtype |S3",)),
    ("another byte order", lambda: gradcore.zeros(2, dtype=np.dtype(np.float32).newbyteorder()), TypeError, ("float64",)),
    ("bytes that are shared", lambda: gradcore.from_numpy(np.ones(2, np.dtype(np.int64).newbyteorder())), TypeError,
     ("expected one of bool",)),
    ("int mean", lambda: i(1, 2).mean(), SpecError, ("mean", "floating", "int64")),
    ("int softmax", lambda: i(1, 2).softmax(0), SpecError, ("softmax", "floating", "int64")),
    ("int gelu", lambda: gradcore.nn.functional.gelu(i(1, 2)), SpecError, ("floating", "int64")),
    ("int += float", lambda: i(1, 2).add_(1.5), SpecError, ("result type float32 can't be cast", "int64")),
    ("int /= int", lambda: i(1, 2).div_(2), SpecError, ("result type float32 can't be cast", "int64")),
    ("where of numbers", lambda: gradcore.where(f(2), f(2), f(2)), SpecError, ("bool tensor", "float32")),
    ("~ of floats", lambda: ~f(2), NotImplementedError, ("float32",)),
    ("& of floats", lambda: i(1) & f(1), NotImplementedError, ("bitwise_and", "float32[1]", "integers or bools")),
    ("shift in place", lambda: f(1).__ilshift__(1), NotImplementedError, ("bitwise_left_shift", "float32[1]")),
    ("int exp in place", lambda: i(1).exp_(), SpecError, ("float32 can't be cast to the desired output type int64",)),
    ("in place too small", lambda: f(3).lerp_(f(2, 3), 0.5), SpecError, ("output with shape [3]", "[2, 3]")),
    ("masked_fill of floats", lambda: f(3).masked_fill_(f(3), 1.0), SpecError, ("boolean masks", "float32[3]")),
    ("masked_fill value", lambda: f(3).masked_fill(f(3) > 0, f(3)), SpecError, ("0-dimensional value tensor", "1 dim")),
    ("addcdiv of ints", lambda: gradcore.addcdiv(i(1), i(1), i(1)), SpecError, ("Integer division with addcdiv",)),
    ("lerp to a number", lambda: gradcore.lerp(f(1), 2.0, 0.5), TypeError, ("lerp", "must be a tensor", "float")),
    ("rounding mode", lambda: gradcore.div(f(1), 2, rounding_mode="up"), RuntimeError, ("None, 'trunc', or 'floor'", "'up'")),
    ("clamp by nothing", lambda: f(1).clamp(), SpecError, ("At least one of 'min' or 'max' must not be None",)),
    ("silu of ints", lambda: F.silu(i(1)), SpecError, ("floating type", "int64")),
    ("prelu", lambda: F.prelu(f(2, 3), f(2)), SpecError, ("parameter numbers = 2", "channel size = 3")),
    ("hardtanh", lambda: F.hardtanh(f(1), 1.0, -1.0), ValueError, ("cannot be greater than", "1.0 and -1.0")),
    ("softshrink", lambda: F.softshrink(f(1), -1.0), RuntimeError, ("greater or equal to 0", "-1.0")),
    ("celu", lambda: F.celu(f(1), 0), RuntimeError, ("alpha cannot be 0",)),
    ("glu", lambda: F.glu(f(3)), SpecError, ("must be even", "dimension 0 is size 3")),
    ("frac of ints", lambda: gradcore.frac(i(1)), SpecError, ("frac", "int64")),
    ("ragged", lambda: gradcore.tensor([[1], [1, 2]]), ValueError, ("regular shape",)),
    ("strings", lambda: gradcore.tensor(["a"]), TypeError, ("numbers", "U1")),
    ("objects", lambda: gradcore.tensor([i]), TypeError, ("numbers", "object")),
    ("an array of objects", lambda: gradcore.tensor(np.array([1, 2], dtype=object)), TypeError, ("numbers", "object")),
    ("None", lambda: gradcore.tensor([None]), RuntimeError, ("dtype of NoneType",)),
    ("complex data", lambda: gradcore.tensor([1j]), TypeError, ("numbers", "complex128")),
    ("from_numpy", lambda: gradcore.from_numpy([1]), TypeError, ("np.ndarray", "list")),
    ("a float size", lambda: gradcore.zeros(2.0), TypeError, ("a size must be an int", "2.0", "float")),
    ("a bool size", lambda: gradcore.zeros(True), TypeError, ("a size must be an int", "True", "bool")),
    ("a float dim", lambda: f(2).sum(0.0), TypeError, ("dim", "0.0")),
    ("clamp", lambda: f(2).clamp(), SpecError, ("At least one of 'min' or 'max'",)),
    ("default dtype", lambda: gradcore.set_default_dtype(np.int64), TypeError, ("floating-point", "int64")),
    ("index", lambda: [1, 2][f()], TypeError, ("integer tensors",)),  # type: ignore[call-overload]
    ("cat a tensor", lambda: gradcore.cat(f(2)), TypeError, ("must be tuple of Tensors, not Tensor",)),
    ("assigned grad", lambda: setattr(f(2, requires_grad=True), "grad", 1.0), TypeError, ("must be a Tensor or None", "float")),
    ("assigned shape", lambda: setattr(f(2, requires_grad=True), "grad", f(3)), SpecError, ("float32[3]", "float32[2]")),
    ("gradient", lambda: (f(2, requires_grad=True) * 2).backward([1.0]), TypeError, ("gradient", "list")),  # type: ignore
    ("roots", lambda: gradcore.autograd.backward([1.0]), TypeError, ("expected tensors", "float")),
    ("too many gradients", lambda: gradcore.autograd.backward([f(requires_grad=True)], [None, None]), RuntimeError,
     ("1 tensors and 2 gradients",)),
]
LABELS: list[Case] = [
    ("too large", lambda: F.cross_entropy(f(2, 3), i(0, 3)), IndexError, ("Target 3 is out of bounds", "0 to 2")),
    ("negative", lambda: F.cross_entropy(f(2, 3), i(0, -1)), IndexError, ("Target -1 is out of bounds", "-100")),
    ("floats", lambda: F.cross_entropy(f(2, 3), f(2)), (SpecError, RuntimeError), ("float32", "[2]")),
    ("too few", lambda: F.cross_entropy(f(2, 3), i(0)), (SpecError, ValueError), ("batch_size", "[2, 3]", "[1]")),
    ("weights", lambda: F.cross_entropy(f(2, 3), i(0, 1), f(2)), (SpecError, RuntimeError), ("3 classes", "[2]")),
    ("reduction", lambda: F.cross_entropy(f(2, 3), i(0, 1), reduction="max"), (SpecError, ValueError), ("max", "reduction")),
    ("dropout", lambda: F.dropout(f(2), 1.5), ValueError, ("between 0 and 1", "1.5")),
]
GRADIENTS: list[Case] = [
    ("no scalar", lambda: (f(2, requires_grad=True) * 2).backward(), RuntimeError,
     ("grad can be implicitly created only for scalar outputs", "[2]")),
    ("empty", lambda: (f(0, requires_grad=True) * 2).backward(), RuntimeError, ("scalar outputs", "[0]")),
    ("no graph", lambda: f(2).sum().backward(), RuntimeError, ("does not require grad and does not have a grad_fn",)),
    ("shape", lambda: (f(2, requires_grad=True) * 2).backward(f(3)), RuntimeError, ("Mismatch in shape", "[3]", "[2]")),
    ("not a leaf", lambda: setattr(f(2, requires_grad=True) * 2, "requires_grad", False), RuntimeError, ("leaf variables",)),
    ("numpy", lambda: f(2, requires_grad=True).numpy(), RuntimeError, ("detach().numpy()",)),
    ("grad of no graph", lambda: grad(f(), f()), RuntimeError, ("does not require grad", "inputs[0]")),
    ("gradcheck", lambda: gradcheck(lambda x: x, [f(2, requires_grad=True)]), ValueError, ("float64", "float32")),
    ("gradcheck of nothing", lambda: gradcheck(lambda x: x, [f(2)]), ValueError, ("requires grad",)),
    ("deepcopy", lambda: __import__("copy").deepcopy(f(2, requires_grad=True) * 2), RuntimeError, ("graph leaves",)),
    ("pickle", lambda: __import__("pickle").dumps(f(2)), TypeError, ("cannot be pickled",)),
]
DEVICES: list[Case] = [
    ("unknown", lambda: gradcore.zeros(2, device="tpu"), DeviceError, ("'tpu'", "cpu", "meta")),
    ("a second cpu", lambda: gradcore.zeros(2, device="cpu:1"), DeviceError, ("cpu:1", "one 'cpu' device")),
    ("two devices", lambda: f(2) + gradcore.zeros(2, device="meta"), DeviceError,
     ("add: Expected all tensors to be on the same device", "cpu and meta")),
    ("a gradient elsewhere", lambda: (f(2, requires_grad=True) * 2).backward(gradcore.ones(2, device="meta")), DeviceError,
     ("the gradient is on meta and the output on cpu",)),
    ("an index elsewhere", lambda: f(2)[gradcore.zeros(1, dtype=np.int64, device="meta")], DeviceError, ("cpu and meta",)),
    ("a value on meta", lambda: gradcore.zeros(2, device="meta").tolist(), DataDependentShape, ("meta", "no values")),
    ("a branch on meta", lambda: bool(gradcore.zeros((), device="meta") > 0), DataDependentShape, ("meta",)),
    ("nonzero on meta", lambda: gradcore.nonzero(gradcore.zeros(2, device="meta")), DataDependentShape, ("nonzero", "meta")),
    ("numpy of meta", lambda: gradcore.zeros(2, device="meta").numpy(), TypeError, ("meta", "Tensor.cpu()")),
]


class Careless(nn.Module):
    """Has no ``super().__init__()``."""

    def __init__(self) -> None:
        pass


def loaded(*samples: Any) -> Any:
    return next(iter(DataLoader(list(samples), len(samples))))


class Proxy:
    #: As of wrapt's.
    __module__ = property(lambda self: "numpy")  # type: ignore[assignment]


MISTAKES: list[Case] = [
    ("one-hot labels of integers", lambda: F.cross_entropy(f(3, 4), f(3, 4, dtype=np.int64)), SpecError,
     ("Expected floating point type for target with class probabilities, got int64", "class indices are [N]")),
    ("an option of a table", lambda: nn.Embedding(3, 2, sparse=True), NotImplementedError,
     ("Embedding()", "gradients are dense")),
    ("labels of NumPy's", lambda: F.cross_entropy(f(2, 3), np.array([0, 1])), TypeError,
     ("cross_entropy(): argument 'target' (position 2) must be Tensor, not numpy.ndarray: convert it with gradcore.tensor(",)),
    ("a list for a layer", lambda: nn.Sequential(nn.Flatten(), nn.Linear(2, 3))([[1.0, 2.0]]), TypeError, ("tensors", "list")),
    ("an array for a layer", lambda: nn.LayerNorm(3)(np.ones((2, 3))), TypeError, ("must be Tensor, not numpy.ndarray",)),
    ("an array for layers", lambda: nn.Flatten()(np.ones((2, 3))), TypeError, ("but got numpy.ndarray [2, 3]:",)),
    ("a proxy without a package", lambda: gradcore.isclose(f(1), Proxy()), TypeError, ("must be Tensor, not Proxy",)),
    ("an array for an activation", lambda: F.softmax(np.ones(3), 0), TypeError, ("softmax(): argument 'input'", "ndarray")),
    ("no super().__init__()", lambda: Careless()(f(2)), AttributeError, ("cannot call Careless", "super().__init__()")),
    ("a model for its parameters", lambda: optim.SGD(nn.Linear(1, 1)), TypeError, ("got Linear: pass its parameters()",)),
    ("one beta", lambda: optim.Adam([f(1, requires_grad=True)], betas=(0.9,)), ValueError, ("two numbers, but got (0.9,)",)),  # type: ignore
    ("no tuple of betas", lambda: optim.NAdam([f(1, requires_grad=True)], betas=0.9), ValueError, ("but got 0.9",)),  # type: ignore
    ("a model to clip", lambda: nn.utils.clip_grad_norm_(nn.Linear(1, 1), 1.0), TypeError, ("Linear: pass its parameters()",)),
    ("no optimizer's state", lambda: optim.SGD([f(1, requires_grad=True)]).load_state_dict({"w": 1}), KeyError,
     ("has 'state' and 'param_groups', but this one has ['w']",)),
    ("a model to save", lambda: gradcore.save({"model": nn.Linear(1, 1)}, io.BytesIO()), TypeError,
     ("model is a Linear; save its state_dict()",)),
    ("a list of modules", lambda: nn.Sequential([nn.ReLU()]), TypeError, ("list is not a Module", "Sequential(*modules)")),
    ("a function as a module", lambda: nn.Sequential(F.relu), TypeError, ("relu is not a Module subclass",)),
    ("a class as a module", lambda: nn.Sequential(nn.ReLU), TypeError, ("ReLU is a class", "write ReLU(...)")),
    *[(f"the device {name}", lambda name=name: gradcore.device(name), DeviceError, (f"unknown device '{name}'",))
      for name in ("cuda:", "cuda:01", "cuda:\u00b2", "cpu:00", ([],))],
    ("a device that is none", lambda: nn.Linear(1, 1).to("gpu"), DeviceError, ("unknown device 'gpu'", "cuda")),
    ("samples of other shapes", lambda: loaded(f(1), f(2)), RuntimeError,
     ("equal size, but got [1] at entry 0 and [2] at entry 1", "collate_fn")),
    ("arrays of other shapes", lambda: loaded(np.ones(2), np.ones(2), np.ones(3)), RuntimeError, ("[3] at entry 2", "pad")),
]
EVERY = [*SHAPES, *DIMS, *TYPES, *LABELS, *GRADIENTS, *DEVICES, *MISTAKES]


@pytest.mark.parametrize(("call", "kind", "texts"), [c[1:] for c in EVERY],
                         ids=[f"{group}-{c[0]}" for group, cases in (
                             ("shapes", SHAPES), ("dims", DIMS), ("types", TYPES), ("labels", LABELS),
                             ("gradients", GRADIENTS), ("devices", DEVICES), ("mistakes", MISTAKES)) for c in cases])
def test_the_error_says_what_was_given(call: Callable[[], Any], kind: Any, texts: tuple[str, ...]) -> None:
    before = [set(gradcore.device(d).ledger.live) for d in ("cpu", "meta")]
    with raises(kind, *texts):
        call()
    # No collector runs, and no reference is left: the error keeps nothing alive.
    assert [set(gradcore.device(d).ledger.live) for d in ("cpu", "meta")] == before


def test_errors_are_the_builtins_that_scripts_catch() -> None:
    for kind, builtins in ((SpecError, (RuntimeError, ValueError)), (DimError, (IndexError, RuntimeError)),
                           (DeviceError, (RuntimeError,)), (gradcore.OutOfMemory, (RuntimeError, MemoryError))):
        assert issubclass(kind, (GradcoreError, *builtins)) and all(issubclass(kind, b) for b in builtins)
    # Python looks the name up when an error comes.
    assert gradcore.OutOfMemoryError is gradcore.cuda.OutOfMemoryError is gradcore.OutOfMemory


def test_an_attribute_that_somebody_else_looks_for_is_pythons_error() -> None:
    class Reading(nn.Module):
        def __init__(self, read: Any) -> None:
            super().__init__()
            self.read = read

        def forward(self, x: Any) -> Any:
            return self.read(x)

    settings = type("Settings", (), {})()
    for read, text in ((lambda x: x * settings.storage, "'Settings' object has no attribute 'storage'"),
                       (lambda x: [x].detach(), "'list' object has no attribute 'detach'")):
        with raises(AttributeError, text):
            nn.Sequential(nn.ReLU(), Reading(read))(f(2))


def test_not_a_number_is_a_value() -> None:
    nan = float("nan")
    x = gradcore.tensor([nan, 1.0, float("inf")], requires_grad=True)
    loss = (x * 2).sum()
    assert np.isnan(loss.item())
    loss.backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    assert np.isnan(gradcore.tensor([nan, 1.0]).amax().item())
    assert np.isnan(gradcore.tensor([1.0, nan]).softmax(0).tolist()).all()
    assert (gradcore.tensor([nan]) == gradcore.tensor([nan])).tolist() == [False]


def test_an_unknown_attribute_of_an_op_is_named() -> None:
    from gradcore.ops import all_ops

    with raises(TypeError, "sum() got an unexpected keyword argument 'axis'", "dims"):
        all_ops()["sum"](f(2), axis=0)
    with raises(TypeError, "add() takes 2 operands", "got 3"):
        all_ops()["add"](f(2), f(2), f(2))
    with raises(TypeError, "cat() expects a list of tensors as 'tensors'", "Tensor"):
        all_ops()["cat"](f(2), dim=0)

"""Functions of PyTorch's internal modules, and methods that gradcore has not got, that packages call."""

from __future__ import annotations

from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple, Optional

import gradcore
from gradcore._conversions import given_to
from gradcore.devices.device import get_device
from gradcore.devices.storage import Storage
from gradcore.distributions.discrete import away_from_ends
from gradcore.distributions.distribution import Distribution, broadcast, summed
from gradcore.distributions.transform import _InverseTransform
from gradcore.engine.value import Value
from gradcore.errors import NotCovered
from gradcore.nn.transformer import _get_activation_fn
from gradcore.utils.as_torch import checked
from gradcore.utils.as_torch.dtypes import FUNCTIONS
from gradcore.utils.as_torch.foreach import _group_tensors_by_device_and_dtype
from gradcore.utils.as_torch.stand_ins import UnusedModule


def _assert(condition: Any, message: str) -> None:
    """``torch._assert``: raise AssertionError unless a condition holds."""
    assert condition, message


def _assert_async(input: Any, assert_msg: str = "Expected Tensor with single nonzero value") -> None:
    """``torch._assert_async``: raise RuntimeError unless a tensor on the CPU is true. Others are not waited for."""
    if input.device.type == "cpu" and not input:
        raise RuntimeError(assert_msg)


def _parse_to(*args: Any, **named: Any) -> tuple[Any, Any, Any, None]:
    """The device, the dtype and the rest of what ``Module.to`` is given."""
    named.pop("memory_format", None)
    device, dtype, non_blocking = given_to(args, **named)
    return None if device is None else get_device(device), dtype, non_blocking, None


def _addindent(s_: str, numSpaces: int) -> str:
    """A text whose lines, but for the first, are moved to the right: for the ``repr`` of a module of the user's."""
    return s_.replace("\n", "\n" + " " * numSpaces)


#: ``torch.cpu``, which has no memory to report, nor anything to wait for.
CPU: Any = ModuleType("torch.cpu", "What code for any kind of device asks of the CPU.")
vars(CPU).update(current_device=lambda: "cpu", device_count=lambda: 1, is_available=lambda: True,
                 synchronize=lambda device=None: None)


def _get_device_module(device: Any = None) -> Any:
    """``torch.cuda`` or ``torch.cpu``: the module for a device, by default for the GPU, if there is one."""
    if device is None:
        device = gradcore.accelerator.current_accelerator() or "cpu"
    kind = getattr(device, "type", device).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise RuntimeError(f"Invalid device module {kind!r}: expected 'cpu' or 'cuda'")
    return CPU if kind == "cpu" else gradcore.cuda


def _probs_to_logits(probs: Any, is_binary: bool = False) -> Any:
    """The logits of probabilities: log(p), or log(p / (1 - p)) of those that have two outcomes."""
    inside = away_from_ends(probs)
    return inside.log() - (-inside).log1p() if is_binary else inside.log()


class UntypedStorage:
    """The bytes that a tensor shares with its views, whose objects of this class are equal."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def device(self) -> Any:
        return self._storage.device

    def nbytes(self) -> int:
        return self._storage.extent

    __len__ = size = __sizeof__ = nbytes

    def data_ptr(self) -> int:
        """The address of the first byte."""
        return self._storage.block.address

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UntypedStorage) and self._storage is other._storage

    def __hash__(self) -> int:
        return hash(id(self._storage))


class TypedStorage(UntypedStorage):
    """What ``x.storage()`` gives: the bytes, without the dtype of the elements in which PyTorch counts them."""

    def size(self) -> int:
        """Raise NotCovered: the number of elements is not known."""
        raise NotCovered("x.storage().size() is not implemented by gradcore. Nearest: x.untyped_storage().nbytes()")

    __len__ = size

    def __bool__(self) -> bool:
        return self.nbytes() > 0

    def untyped(self) -> UntypedStorage:
        return UntypedStorage(self._storage)


class LKJCholesky(Distribution):
    """A distribution that can be named and derived from, beside a class of another metaclass, too."""

    def __init__(self, *args: Any, **named: Any) -> None:
        raise NotCovered("torch.distributions.LKJCholesky is not implemented by gradcore: it can be mentioned, not used")


class Dual(NamedTuple):
    """A tensor and its tangent, which none has."""

    primal: Any
    tangent: None


class _WithoutValues(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Value) and x.storage.device.type == "meta"


class FakeTensor(metaclass=_WithoutValues):
    """The type of tensors without values, which are those on meta: packages do not read them."""


#: Methods that give what every tensor of gradcore is, which is neither complex nor sparse: itself.
METHODS = ("conj", "resolve_conj", "resolve_neg", "to_dense")

#: By module.
GIVEN: dict[str, dict[str, Any]] = {
    "": {"TypedStorage": TypedStorage, "UntypedStorage": UntypedStorage, "_assert": _assert, "_assert_async": _assert_async,
         **dict.fromkeys(("conj", "real", "resolve_conj", "resolve_neg"), lambda input: input),
         "is_storage": lambda obj: isinstance(obj, UntypedStorage),
         "get_autocast_cpu_dtype": lambda: FUNCTIONS["get_autocast_dtype"]("cpu"),
         "get_autocast_gpu_dtype": lambda: FUNCTIONS["get_autocast_dtype"]("cuda"), "get_device_module": _get_device_module},
    "__config__": {"show": lambda: f"gradcore {gradcore.__version__}"},
    "_C": {"_are_functorch_transforms_active": lambda: False, "_log_api_usage_once": lambda event: None,
           "_nn": UnusedModule("torch._C._nn", {"_parse_to": _parse_to})},
    "_subclasses": {"FakeTensor": FakeTensor}, "_subclasses.fake_tensor": {"FakeTensor": FakeTensor},
    "_dynamo": {**{name: getattr(gradcore.compiler, name) for name in gradcore.compiler.__all__},
                "mark_static_address": lambda tensor, guard=True: None},
    "autograd.forward_ad": {"unpack_dual": lambda tensor, *, level=None: Dual(tensor, None)},
    "backends.mkldnn": {"is_available": lambda: False},
    "distributions": {"LKJCholesky": LKJCholesky},
    "distributions.multivariate_normal": {"Distribution": Distribution},
    "distributions.transforms": {"_InverseTransform": _InverseTransform},
    "distributions.utils": {
        "_sum_rightmost": summed, "clamp_probs": away_from_ends, "probs_to_logits": _probs_to_logits,
        "logits_to_probs": lambda logits, is_binary=False: logits.sigmoid() if is_binary else logits.softmax(-1),
        "_standard_normal": lambda shape, dtype, device: gradcore.randn(shape, dtype=dtype, device=device),
        "broadcast_all": broadcast, "lazy_property": cached_property},
    "linalg": checked.FUNCTIONS,
    "jit.annotations": {"Dict": dict, "List": list, "Optional": Optional, "Tuple": tuple},
    "nn.modules.module": {"_addindent": _addindent},
    "nn.modules.transformer": {"_get_activation_fn": _get_activation_fn},
    "profiler": {"kineto_available": lambda: False},
    "serialization": {"add_safe_globals": lambda safe_globals: None, "clear_safe_globals": lambda: None,
                      "get_safe_globals": lambda: []},
    "types": {"Device": Any, "Number": float | int | bool},
    "utils._foreach_utils": {"_group_tensors_by_device_and_dtype": _group_tensors_by_device_and_dtype},
    "utils.data._utils.collate": {"default_collate": gradcore.utils.data.default_collate},
    "utils.dlpack": {"from_dlpack": gradcore.from_dlpack, "to_dlpack": gradcore.Tensor.__dlpack__}}

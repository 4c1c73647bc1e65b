"""The public tensor class: its attributes and a few methods; others come from ops and functional."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from numbers import Number
from typing import Any

import numpy as np

from gradcore import _indexing, arguments, functional
from gradcore._classes import Size, constructed
from gradcore._conversions import Conversions
from gradcore._format import format_tensor
from gradcore._gradients import Gradients
from gradcore._operators import Operators
from gradcore.devices.device import Device, device_of_new
from gradcore.engine import modes
from gradcore.engine.dispatch import install_tensor
from gradcore.engine.node import Node
from gradcore.engine.owners import retag
from gradcore.engine.state import local
from gradcore.events import LASTING
from gradcore.functional.arithmetic import scaled
from gradcore.ops import creation, elementwise, in_place, movement

#: Makes a :class:`Size` of ints that need no check.
_tuple = tuple.__new__


class Tensor(Operators, Conversions, Gradients):
    """An array of one dtype on one device, with its place in the graph.

    Make one with :func:`gradcore.tensor`, :func:`gradcore.zeros` and similar functions. The constructor follows PyTorch's old
    one: from a sequence, a tensor of the default dtype with copies of the values; from sizes, an uninitialized tensor; from a
    tensor, one that shares its memory. It raises TypeError for anything else.
    """

    __slots__ = ()

    def __init__(self, *data: Any, device: Any = None) -> None:
        made = constructed(data, functional.get_default_dtype(), device)
        self.storage = made.storage
        self.spec = made.spec
        self.array = made.array
        self.edge = self.base = None

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        """The sizes of the dimensions."""
        return _tuple(Size, self.spec.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's dtype of the elements; bfloat16's is from ml_dtypes."""
        return self.spec.dtype

    @property
    def device(self) -> Device:
        """Where the bytes are: ``cpu``, ``cuda:0``, ``meta``."""
        return self.storage.device.compute

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.spec.ndim

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.spec.nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.spec.dtype.itemsize

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of dimension ``dim``."""
        return self.shape if dim is None else self.spec.shape[functional.dim_of(dim, self)]

    def numel(self) -> int:
        """The number of elements."""
        return self.spec.numel

    nelement = numel

    def dim(self) -> int:
        """The number of dimensions."""
        return self.spec.ndim

    ndimension = dim

    def stride(self, dim: int | None = None) -> Any:
        """The stride of a dimension, or all strides, in elements."""
        return self.spec.strides if dim is None else self.spec.strides[functional.dim_of(dim, self)]

    def storage_offset(self) -> int:
        """Where the first element is in the storage, in elements."""
        local.state.placed = True
        return self.spec.offset

    def is_contiguous(self) -> bool:
        """Do the elements lie row by row, without gaps?"""
        return self.spec.contiguous

    def is_floating_point(self) -> bool:
        """Is the dtype one of floats?"""
        return self.spec.floating

    def element_size(self) -> int:
        """The bytes of an element."""
        return self.spec.dtype.itemsize

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self.storage.block.address + self.spec.offset * self.spec.dtype.itemsize

    def record_stream(self, stream: Any) -> None:
        """Note that work not launched by gradcore uses the tensor's memory on ``stream``: it is reused only after that work.

        For gradcore's own ops this happens automatically.
        """
        self.storage.block.use_on(stream.queue)

    @property
    def is_cuda(self) -> bool:
        """Whether the tensor is on a GPU."""
        return self.storage.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether the tensor is in host memory, pinned or not."""
        return self.storage.device.type == "cpu"

    @property
    def is_meta(self) -> bool:
        """Whether the tensor has a shape but no values."""
        return self.storage.device.type == "meta"

    def get_device(self) -> int:
        """The index of the tensor's GPU; -1 if it is on none."""
        return int(self.storage.device.index or 0) if self.is_cuda else -1

    @property
    def is_sparse(self) -> bool:
        """False, as ``is_mps`` and ``is_xpu`` are: what is written for PyTorch asks it, such as optimizers of each gradient."""
        return False

    is_mps = is_xpu = is_sparse

    @property
    def layout(self) -> str:
        """``gradcore.strided``, as there is no other."""
        return "strided"

    @property
    def _version(self) -> int:
        return self.storage.version

    @property
    def _base(self) -> Any:
        return self.base

    def __len__(self) -> int:
        if not self.spec.ndim:
            raise TypeError("len() of a 0-d tensor")
        return self.spec.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.spec.ndim:
            raise TypeError("iteration over a 0-d tensor")
        if self.requires_grad and local.state.grad:
            # One op, whose gradient joins those of the parts: that of each index has the size of the whole.
            return iter(functional.unbind(self))
        return (self[i] for i in range(self.spec.shape[0]))

    def __contains__(self, element: Any) -> bool:
        if not isinstance(element, (Tensor, Number)):
            raise RuntimeError("Tensor.__contains__ only supports Tensor or scalar, but you passed in a "
                               f"{type(element).__name__}.")
        return bool((self == element).any().item())

    def __repr__(self) -> str:
        return format_tensor(self)

    # By identity, since ``==`` compares elements.
    __hash__ = object.__hash__

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("tensors cannot be pickled: save a state_dict with gradcore.save, or send tensor.numpy()")

    def __copy__(self) -> Tensor:
        # As in PyTorch a leaf over the same bytes, also of what has a graph, and without a gradient.
        copy = self.detach()
        copy.requires_grad = self.requires_grad
        return copy

    def __deepcopy__(self, memo: dict[Any, Any]) -> Tensor:
        if self.edge is not None and type(self.edge[0]) is Node:
            raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol "
                               "at the moment")
        with modes.no_grad():
            # As in PyTorch, what shares all its bytes, as a tied weight does in a state dict, shares those of its copies.
            twin, _ = memo.get((id(self.storage), self.spec), (None, None))
            copy = movement.clone(self) if twin is None else twin.detach()
        # With the storage, since another could come to have its id.
        memo[id(self.storage), self.spec] = copy, self.storage
        copy.requires_grad = self.requires_grad
        role = self.storage.block.tag.role
        # A copy of what a state dict has is no parameter or buffer; those of a module's copy become it there.
        if role in LASTING and (role not in ("parameter", "buffer") or self.requires_grad):
            retag(copy, role=role)
        memo[id(self)] = copy
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        return copy

    # -- parts, and writing in place -----------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Tensor:
        return _indexing.read(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        _indexing.write(self, index, value)

    @property
    def T(self) -> Tensor:
        """A view with the dimensions in reverse order."""
        return movement.permute(self, dims=tuple(range(self.spec.ndim))[::-1])

    @property
    def mT(self) -> Tensor:
        """A view with the last two dimensions exchanged."""
        return functional.transpose(self, -2, -1)

    @property
    def H(self) -> Tensor:
        """The transposed matrix, since every dtype is real. Raises RuntimeError unless the tensor has 0 or 2 dimensions."""
        if self.spec.ndim not in (0, 2):
            raise RuntimeError(f"tensor.H is only supported on matrices (2-D tensors). Got {self.spec.ndim}-D tensor.")
        return self.T

    mH = mT

    def copy_(self, src: Any, non_blocking: bool = False) -> Tensor:
        """Write ``src``, a number or a tensor of any dtype and device that broadcasts, over the tensor; returns it."""
        if not isinstance(src, Tensor):
            return creation.fill_(self, src)
        if src.device is not self.device:
            src = functional.transfer(src, self.device, non_blocking)
        return movement.copy_(self, src)

    def fill_(self, value: Any) -> Tensor:
        """Write ``value``, a number or a 0-d tensor, to every element; returns the tensor. Raises RuntimeError for others."""
        if not isinstance(value, Tensor):
            return creation.fill_(self, value)
        if value.spec.ndim:
            raise RuntimeError("fill_ only supports 0-dimension value tensor but got tensor with "
                               f"{value.spec.ndim} dimensions.")
        return self.copy_(value)

    def zero_(self) -> Tensor:
        """Write 0 to every element; returns the tensor."""
        return creation.fill_(self, 0)

    def new_zeros(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """A tensor of zeros, by default of this tensor's dtype and device."""
        return functional.zeros(*size, dtype=dtype or self.dtype, device=device_of_new(device, self.device),
                                requires_grad=requires_grad)

    def new_ones(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """A tensor of ones, by default of this tensor's dtype and device."""
        return functional.ones(*size, dtype=dtype or self.dtype, device=device_of_new(device, self.device),
                               requires_grad=requires_grad)

    def new_full(self, size: Sequence[int], fill_value: Any, *, dtype: Any = None, device: Any = None,
                 requires_grad: bool = False) -> Tensor:
        """A tensor of one value, by default of this tensor's dtype and device."""
        return functional.full(size, fill_value, dtype=dtype or self.dtype, device=device_of_new(device, self.device),
                               requires_grad=requires_grad)

    def new(self, *data: Any, size: Any = None, device: Any = None) -> Tensor:
        """A tensor of this dtype by PyTorch's old constructor, from a sequence or sizes; by default on this device."""
        made: Tensor = constructed((Size(size),) if size is not None else data, self.spec.dtype,
                                   device_of_new(device, self.storage.device))
        if made.spec.dtype != self.spec.dtype:
            raise TypeError(f"new(): expected a tensor of {self.spec.dtype}, but got one of {made.spec.dtype}")
        return made

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """A tensor with a copy of the data, by default of this tensor's dtype and device."""
        return functional.tensor(data, dtype=dtype or self.dtype, device=device_of_new(device, self.device),
                                 requires_grad=requires_grad)

    def new_empty(self, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        """An uninitialized tensor, by default of this tensor's dtype and device."""
        return functional.empty(*size, dtype=dtype or self.dtype, device=device_of_new(device, self.device),
                                requires_grad=requires_grad)

    def type_as(self, other: Tensor) -> Tensor:
        """The tensor in the dtype and on the device of ``other``; itself if they are its own."""
        return self.to(other)

    def add_(self, other: Any, *older: Any, alpha: Any = 1) -> Tensor:
        """Add ``alpha * other`` in place; returns the tensor."""
        if older:
            other, alpha = arguments.in_todays_order("add_", 1, other, *older)
        return in_place.add_(self, scaled(self, other, alpha))

    def sub_(self, other: Any, *older: Any, alpha: Any = 1) -> Tensor:
        """Subtract ``alpha * other`` in place; returns the tensor."""
        if older:
            other, alpha = arguments.in_todays_order("sub_", 1, other, *older)
        return in_place.sub_(self, scaled(self, other, alpha))

    def mul_(self, other: Any) -> Tensor:
        """Multiply by ``other`` in place; returns the tensor."""
        return in_place.mul_(self, other)

    # -- functions that take their arguments in another order, or by keyword alone -------------------------------------

    def where(self, condition: Tensor, other: Any) -> Tensor:
        """The tensor where the condition is True, else ``other``."""
        return elementwise.where(condition, self, other)

    def polygamma(self, n: int) -> Tensor:
        """:func:`gradcore.polygamma` of order ``n``."""
        return functional.polygamma(n, self)

    def cholesky(self, upper: bool = False) -> Tensor:
        """:func:`gradcore.cholesky`, with ``upper`` also by position."""
        return functional.linalg.cholesky(self, upper=upper)


def _attach_methods(names: Sequence[str]) -> None:
    """Make functions whose first argument is a tensor its methods too."""
    for name, method in {**{name: getattr(functional, name) for name in names}, **functional.TENSOR_METHODS}.items():
        if name not in Tensor.__dict__:
            setattr(Tensor, name, method)


_attach_methods(functional.METHODS)
for _name in arguments.torch_arguments()["Tensor"]:
    if inspect.isfunction(_method := inspect.getattr_static(Tensor, _name, None)):
        setattr(Tensor, _name, arguments.lenient(_method, "Tensor", _name))
install_tensor(Tensor)

"""Attention on the GPU: one launch forward and one backward, for heads of up to 128 elements (64 in double precision)."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from cupy.cuda import memory, runtime

from gradcore.devices.attention import build_attention
from gradcore.devices.gpu import launch as gl
from gradcore.devices.gpu.kernels.elementwise import wide
from gradcore.devices.gpu.kernels.linalg import CupyWithProducts
from gradcore.devices.gpu.kernels.movement import copy
from gradcore.devices.gpu.kernels.random import uniform
from gradcore.devices.gpu.workspaces import on_stream, reserve
from gradcore.devices.kernels import dropout_factor, split_workspace
from gradcore.errors import CaptureError
from gradcore.memory.driver import capturing

_SIZES = ("heads", "length", "keys", "width", "values", "causal", "whole")
_THREADS = 128
_TENSORS = ("q", "k", "v", "mask", "out", "dy", "dq", "dk", "dv")
ATTENTION_ARGUMENT = np.dtype([(name, "i8") for name in _SIZES] + [(name, "f8") for name in ("scale", "drop", "left")]
                              + [(name, "i8", (4,)) for name in _TENSORS])


def _room(q: Any, v: Any) -> int:
    """The head width that the kernels are compiled for, 0 if the heads are too wide."""
    for width in (32, 64, 128):
        if max(q.shape[3], v.shape[3]) <= width and width * wide(q.dtype).itemsize <= 512:
            return width
    return 0


def _whole(*tensors: Any) -> bool:
    """Do rows of all tensors consist of accesses of 16 bytes?"""
    def along(x: Any) -> bool:
        return x.strides[3] == x.itemsize and not x.shape[3] * x.itemsize % 16 and not any(
            s % 16 for n, s in zip(x.shape[:3], x.strides[:3], strict=True) if n > 1)

    return gl.packed(*tensors) and all(map(along, tensors))


def _rows(dtype: Any, forward: bool) -> int:
    """The queries of a block (in a gradient, or keys): ``Own`` in kernels/attention.cu."""
    return 64 if dtype.itemsize == 2 else 32 if forward else 16


def _argument(q: Any, k: Any, v: Any, mask: Any, drop: Any, causal: bool, scale: float, **others: Any) -> Any:
    found = np.zeros((), ATTENTION_ARGUMENT)
    sizes = q.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3], causal, _whole(q, k, v, *others.values())
    for name, value in zip(_SIZES, sizes, strict=True):
        found[name] = value
    found["scale"] = scale
    found["drop"] = drop or 0.0
    found["left"] = dropout_factor(drop or 0.0)
    for name, array in {"q": q, "k": k, "v": v, **others}.items():
        found[name] = gl.elements(array)
    if mask is not None:
        found["mask"] = gl.broadcast(mask, 4)
    return found


#: The kernels for heads too wide for the shared memory of a multiprocessor.
_WIDER = build_attention(CupyWithProducts(), uniform)
#: The number of their inputs.
_INPUTS = {"attention": 6, "attention_grad": 9}


def _wider(op: str, *values: Any, **how: Any) -> None:
    # CuPy would launch its own kernels on addresses that are made up.
    gl.refuse_notes()
    with on_stream():
        if values[0].dtype.name == "bfloat16":
            _in_single(op, values, how)
        else:
            _WIDER[op](*values, **how)


def _in_single(op: str, values: tuple[Any, ...], how: dict[str, Any]) -> None:
    """The same for bfloat16, on copies in float32: these lie in the libraries' pool, and a capture cannot have them."""
    *arrays, workspace = values
    narrow = [k for k, a in enumerate(arrays) if getattr(a, "dtype", None) == values[0].dtype]
    pieces: list[tuple[int, Any]] = [(arrays[k].size, np.dtype(np.float32)) for k in narrow]
    pieces.append((2 * workspace.nbytes, workspace.dtype))
    nbytes = sum(length * dtype.itemsize + 16 for length, dtype in pieces)
    if capturing._is_owned():
        raise CaptureError(f"op {op!r} allocates {nbytes:,} bytes for copies in float32, as of such wide heads in bfloat16")
    index = runtime.getDevice()
    held = reserve(index, nbytes, "gradcore", op)
    whole = cupy.ndarray(nbytes, np.uint8, memory.MemoryPointer(memory.UnownedMemory(held.ptr, nbytes, held, index), 0))
    *rooms, workspace = split_workspace(whole, *pieces)
    single = {k: room.reshape(arrays[k].shape) for k, room in zip(narrow, rooms, strict=True)}
    for k in narrow:
        if k < _INPUTS[op]:
            copy(arrays[k], single[k])
    _WIDER[op](*[single.get(k, a) for k, a in enumerate(arrays)], workspace, **how)
    for k in narrow:
        if k >= _INPUTS[op]:
            copy(single[k], arrays[k])


def _start(name: str, dtype: Any, room: int, blocks: int, *arguments: Any) -> None:
    if blocks:
        gl.start("attention", gl.instance(name, dtype, room), blocks, _THREADS, arguments)


@gl.kernel
def attention(q: Any, k: Any, v: Any, mask: Any, state: Any, drop: Any, out: Any, lse: Any, workspace: Any, *, causal: bool,
              scale: float) -> None:
    room = _room(q, v)
    if not room:
        _wider("attention", q, k, v, mask, state, drop, out, lse, workspace, causal=causal, scale=scale)
        return
    blocks = q.shape[0] * q.shape[1] * -(-q.shape[2] // _rows(q.dtype, True))
    _start("attention", q.dtype, room, blocks, q, k, v, mask, state, out, lse,
           _argument(q, k, v, mask, drop, causal, scale, out=out))


@gl.kernel
def attention_grad(dy: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, state: Any, drop: Any, dq: Any, dk: Any,
                   dv: Any, workspace: Any, *, causal: bool, scale: float) -> None:
    room = _room(q, v)
    if not room:
        _wider("attention_grad", dy, q, k, v, mask, out, lse, state, drop, dq, dk, dv, workspace, causal=causal, scale=scale)
        return
    heads = q.shape[0] * q.shape[1]
    how = _argument(q, k, v, mask, drop, causal, scale, out=out, dy=dy, dq=dq, dk=dk, dv=dv)
    queries, keys = (heads * -(-x.shape[2] // _rows(q.dtype, False)) for x in (q, k))
    _start("attention_grads", q.dtype, room, queries + keys, dy, q, k, v, mask, out, lse, state, dq, dk, dv, np.int32(queries),
           how)

"""The kernel table of the GPU, and launches of CUDA kernels: template instances, grids, and layouts as arguments.

All that an op's kernel submits goes through :func:`start`, :func:`zero` and :func:`multiply`, which can record it instead.
NVRTC compiles an instance at its first launch, to machine code for the device; CuPy caches that on disk.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import cupy
import numpy as np
from cupy.cuda import compiler, driver, runtime

from gradcore.devices.gpu.faults import of_launch
from gradcore.devices.gpu.loaded import loading
from gradcore.devices.gpu.sources import source_of
from gradcore.devices.gpu.workspaces import made_room, shared, stream_of
from gradcore.tiling import BLOCK as BLOCK

#: By op; complete once :mod:`gradcore.devices.gpu.kernels` is imported.
KERNELS: dict[str, Callable[..., Any]] = {}


def kernel(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function as the GPU's kernel of the op that it is named after."""
    KERNELS[fn.__name__] = fn
    return fn


#: The most blocks of kernels that take any number.
MOST_BLOCKS = 1 << 16
#: The most blocks of a grid.
GRID = (1 << 31) - 1
#: The widest row that a warp reduces; wider ones take a block.
WARP_ROW = 1024

#: The C++ names of the dtypes that kernels have instances for; bfloat16, which needs a package, is added when it
#: is first used.
NAMES = {np.dtype(k): v for k, v in {
    "f4": "float", "f8": "double", "f2": "half", "i8": "long long", "i4": "int", "i2": "short", "i1": "signed char",
    "u1": "unsigned char", "?": "bool"}.items()}

# Mirrors of the structures in kernels/common.cuh: 64-bit integers throughout, so nothing is padded.
_DIMS = 8
_TENSORS = 6
AXES = np.dtype([("count", "i8"), ("small", "i8"), ("shape", "i8", (_DIMS,)), ("strides", "i8", (_TENSORS, _DIMS))])
LAYOUT = np.dtype([("rows", "i8"), ("width", "i8"), ("kept", AXES), ("folded", AXES)])


@functools.cache
def _function(family: str, instance: str, device: int) -> Any:
    names = (instance,) if "<" in instance else None
    with loading("gradcore's kernels", device):
        module = cupy.RawModule(code=source_of(family), options=("--std=c++17",), name_expressions=names)
        try:
            return module.get_function(instance)
        except RuntimeError as error:
            if type(error) is not RuntimeError:
                raise
            # CuPy compiles nothing without CUDA's headers, though these kernels include none.
            raise ImportError(str(error)) from error


#: Placeholder for the address of the memory that the blocks of a launch share, which depends on the stream.
SHARED = object()


class Unnoted(Exception):
    """Raised in a dry run if a kernel does something that cannot be recorded."""


class _Noted(threading.local):
    #: In a dry run, the record of what the kernel submits: function, constant arguments, arguments that may be addresses.
    tape: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] | None = None


noted = _Noted()


def refuse_notes() -> None:
    """In a dry run raise :class:`Unnoted`, before work that cannot be recorded or that depends on more than layouts."""
    if noted.tape is not None:
        raise Unnoted


def start(family: str, instance: str, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
    """Launch a kernel on the current stream, or record it in a dry run."""
    if noted.tape is not None:
        noted.tape.append((launch, (family, instance, blocks, threads), arguments))
        return
    launch(family, instance, blocks, threads, arguments)


def zero(array: Any) -> None:
    """Set the bytes of a contiguous array to zero on the current stream, or record it in a dry run."""
    if not array.size:
        return
    if noted.tape is not None:
        noted.tape.append((clear, (array.nbytes,), (array,)))
        return
    clear(array.data, array.nbytes)


def multiply(library: Any, plan: Any, *addresses: int) -> None:
    """Run a matrix product that a library planned on the current stream, or record it in a dry run."""
    if noted.tape is not None:
        noted.tape.append((multiply, (library, plan), addresses))
        return
    library.run(plan, *addresses)


_ERRORS = compiler.CompileException, runtime.CUDARuntimeError, driver.CUDADriverError, ImportError, OSError


def launch(family: str, instance: str, blocks: int, threads: int, arguments: tuple[Any, ...]) -> None:
    """Launch a kernel. All launches come here, and every :func:`zero` to :func:`clear`, so that tests can replace them.

    Raises :class:`KernelError` if the kernel does not compile or launch, :class:`DeviceFault` if an earlier one has failed.
    """
    device = runtime.getDevice()
    while True:
        try:
            _function(family, instance, device)((blocks,), (threads,), placed(arguments), stream=stream_of(device))
            return
        except _ERRORS as error:
            # The kernel's code, which the driver loads now, may not fit beside what the pools have cached.
            if not made_room(error, device):
                raise of_launch(error, family, instance, blocks, threads) from error


def placed(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """A launch's arguments, with the memory that its blocks share in the place of :data:`SHARED`."""
    return (*arguments[:-1], np.uint64(shared())) if arguments[-1] is SHARED else arguments


def clear(pointer: Any, nbytes: int) -> None:
    pointer.memset_async(0, nbytes, stream_of(runtime.getDevice()))


def name_of(dtype: Any) -> str:
    """The C++ name of a dtype. Raises NotImplementedError for a dtype without instances of kernels."""
    dtype = np.dtype(dtype)
    found = NAMES.get(dtype)
    if found is None:
        if dtype.name != "bfloat16":
            raise NotImplementedError(f"the CUDA kernels have no instance for {dtype.name}: expected one of "
                                      f"{', '.join(dict.fromkeys([*(d.name for d in NAMES), 'bfloat16']))}")
        found = NAMES[dtype] = "bfloat"
    return found


@functools.lru_cache(maxsize=4096)
def instance(name: str, *types: Any) -> str:
    """The name of a template's instance; its arguments are dtypes, C++ names or numbers."""
    return f"{name}<{', '.join([str(t) if isinstance(t, (str, int)) else name_of(t) for t in types])}>"


def blocks_for(threads: int) -> int:
    """Blocks for a kernel whose threads take more than one element each where there are too many."""
    return min(-(-threads // BLOCK), MOST_BLOCKS)


def run(family: str, name: str, types: Sequence[Any], count: int, *arguments: Any) -> None:
    """Launch a kernel over ``count`` elements, with as many threads as are useful."""
    if count:
        start(family, instance(name, *types), blocks_for(count), BLOCK, arguments)


def run_blocks(family: str, name: str, types: Sequence[Any], blocks: int, *arguments: Any) -> None:
    """Launch a kernel with ``blocks`` blocks of :data:`BLOCK` threads."""
    if blocks:
        start(family, instance(name, *types), blocks, BLOCK, arguments)


def run_rows(family: str, name: str, types: Sequence[Any], rows: int, lanes: int, *arguments: Any,
             threads: int = BLOCK) -> None:
    """Launch a kernel with a team of ``lanes`` threads for each row; ``lanes`` is its last argument. A block has ``threads``
    threads, or those of one team if these are more."""
    threads = max(threads, lanes)
    if rows:
        start(family, instance(name, *types), -(-rows // (threads // lanes)), threads, (*arguments, np.int32(lanes)))


def lanes_of(width: int) -> int:
    """Threads of the team for a contiguous row, in a kernel whose teams may take several rows."""
    return 32 if width <= WARP_ROW else BLOCK


def lanes_of_one(width: int) -> int:
    """The same for kernels whose teams take one row each: few for a narrow row, with four elements each, since most threads of
    a warp would have nothing to do."""
    return lanes_of(width) if width > 64 else 1 << max((width - 1).bit_length() - 2, 0)


def length_of(width: int, *arrays: Any) -> int:
    """Neighbors in one access: 16 bytes if contiguous rows of ``width`` all begin at a multiple of that, else one element."""
    length = 16 // arrays[0].itemsize
    return 1 if width % length or not packed(*arrays) else length


def lanes_of_parts(width: int, length: int) -> int:
    """Threads of the team for a row that is held in registers (kernels/rows.cuh), in kernels whose teams take one row each."""
    if length == 1 or width > WARP_ROW:
        return lanes_of_one(width)
    return min(1 << (max(-(-width // 16), 1) - 1).bit_length(), 32)


def columns_of(width: int, length: int) -> tuple[int, int, int] | None:
    """Threads of the team, a warp or a block, whose threads can add up columns of rows of ``width`` in registers; accesses of
    each to a part of a row, and parts. None if there are too many columns.

    One part of at most 16 elements, or four of at most 8, leaves room for two blocks a multiprocessor. What a warp cannot hold
    in one part is for a block, whose threads then hold little and can load several rows at once.
    """
    return next(((lanes, some, parts) for lanes in (32, BLOCK) for parts, some in ((1, 1), (1, 2), (1, 4), (4, 1), (4, 2))
                 if width <= lanes * length * some * parts and length * some <= (16 if parts == 1 else 8)
                 and (parts == 1 or (length > 1 and lanes == BLOCK))), None)


def merged(shape: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """The dimensions of tensors, and by dimension their strides, with neighbors merged that are contiguous in all of them."""
    sizes: list[int] = []
    steps: list[list[int]] = []
    for n, *step in zip(shape, *strides, strict=True):
        if n == 1:
            continue
        if sizes and all(before == now * n for before, now in zip(steps[-1], step, strict=True)):
            sizes[-1] *= n
            steps[-1] = step
        else:
            sizes.append(n)
            steps.append(step)
    return sizes, steps


def axes(shape: Sequence[int], *strides: Sequence[int]) -> Any:
    """The dimensions of up to six tensors as a kernel argument, merged where contiguous; strides are in elements."""
    sizes, steps = merged(shape, *strides)
    if len(sizes) > _DIMS:
        raise NotImplementedError(f"a CUDA kernel takes {_DIMS} dimensions that cannot be merged, but got {len(sizes)}: "
                                  f"shape {tuple(shape)}; make the tensor contiguous first")
    found = np.zeros((), AXES)
    found["count"] = max(len(sizes), 1)
    found["small"] = math.prod(sizes) < 1 << 32
    found["shape"] = sizes + [1] * (_DIMS - len(sizes))
    for k in range(len(strides)):
        found["strides"][k, :len(sizes)] = [step[k] for step in steps]
    return found


@functools.lru_cache(maxsize=4096)
def layout_of(shape: tuple[int, ...], folded: tuple[int, ...], *strides: tuple[int, ...]) -> Any:
    """The layout of tensors of one shape as a kernel argument, with the dimensions ``folded`` apart; strides in elements."""
    kept = [d for d in range(len(shape)) if d not in folded]
    found = np.zeros((), LAYOUT)
    found["rows"] = math.prod(shape[d] for d in kept)
    found["width"] = math.prod(shape[d] for d in folded)
    for name, dims in (("kept", kept), ("folded", folded)):
        found[name] = axes([shape[d] for d in dims], *[[s[d] for d in dims] for s in strides])
    return found


def layout(folded: Sequence[int], *arrays: Any) -> Any:
    """The layout of arrays of one shape as a kernel argument, with the dimensions ``folded`` apart from the others."""
    return layout_of(arrays[0].shape, tuple(folded), *[elements(a) for a in arrays])


def interleaved(where: Any) -> bool:
    """Are the rows of the layout's first tensor interleaved, so that with a thread for each row accesses are coalesced?"""
    beside, across = where["kept"], where["folded"]
    return bool(where["width"] > 1 and beside["strides"][0, beside["count"] - 1] == 1
                and across["strides"][0, across["count"] - 1] != 1)


@functools.lru_cache(maxsize=4096)
def _rows_of(shape: tuple[int, ...], folded: tuple[int, ...], size: int,
             *strides: tuple[int, ...]) -> tuple[Any, int, tuple[int, int], tuple[int, int] | None]:
    """The layout and its rows; threads of the team and neighbors in one access for any address, and for multiples of 16 bytes,
    if all rows begin at such when the first one does."""
    where, length = layout_of(shape, folded, *strides), 16 // size
    width, (beside, across) = int(where["width"]), (where[n]["strides"][:len(strides)] for n in ("kept", "folded"))
    even = where["folded"]["count"] == 1 and np.all(across[:, 0] == 1) and not np.any(beside % length) and not width % length
    return where, int(where["rows"]), (lanes_for(where), 1), (lanes_of_parts(width, length), length) if even else None


def rows_of(folded: Sequence[int], *arrays: Any) -> tuple[Any, int, int, int]:
    """The layout as :func:`layout` makes it; its rows, threads of the team for each, and neighbors in one access."""
    where, rows, alone, together = _rows_of(arrays[0].shape, tuple(folded), arrays[0].itemsize, *[elements(a) for a in arrays])
    return where, rows, *(together if together and packed(*arrays) else alone)


def lanes_for(where: Any) -> int:
    """Threads of the team for a row of a layout, in kernels whose teams take one row each."""
    return 1 if interleaved(where) and where["rows"] >= 32 else lanes_of_one(int(where["width"]))


def lanes_to_fold(where: Any) -> int:
    """The same for kernels that read contiguous rows 16 bytes at once, without holding them."""
    across = where["folded"]
    along = across["count"] == 1 and across["strides"][0, 0] == 1
    return lanes_of_parts(int(where["width"]), 2) if along else lanes_for(where)


def elements(array: Any) -> tuple[int, ...]:
    """An array's strides in elements."""
    size = array.itemsize
    return tuple([s // size for s in array.strides])


def extent(x: Any) -> tuple[int, int]:
    """The addresses of an array's first byte and of the one past its last."""
    if x.flags.c_contiguous:
        return x.data.ptr, x.data.ptr + x.nbytes
    steps = [(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)]
    return x.data.ptr + sum(s for s in steps if s < 0), x.data.ptr + sum(s for s in steps if s > 0) + x.itemsize


def broadcast(array: Any, ndim: int) -> tuple[int, ...]:
    """The strides in elements by which an array is read as one of ``ndim`` dimensions, whatever the sizes of those."""
    return broadcast_steps(array.shape, array.strides, array.itemsize, ndim)


def broadcast_steps(shape: Sequence[int], strides: Sequence[int], itemsize: int, ndim: int) -> tuple[int, ...]:
    """The same, of a shape and of strides in bytes."""
    return (*[0] * (ndim - len(shape)), *[0 if n == 1 else s // itemsize for n, s in zip(shape, strides, strict=True)])


def packed(*arrays: Any) -> bool:
    """Are all addresses multiples of 16 bytes? None stands for a tensor that is not there."""
    return not any(a is not None and a.data.ptr & 15 for a in arrays)

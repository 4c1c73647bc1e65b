"""Reader and writer of the safetensors format: a JSON header with the position of each tensor, then the bytes.

https://github.com/huggingface/safetensors: the header's length in eight bytes, the header, the tensors without gaps. No code in
a file is run, and memory is allocated only for data that the file is known to hold.
"""

from __future__ import annotations

import errno
import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gradcore.dtypes import bfloat16
from gradcore.report.files import replacing
from gradcore.units import count_of

Array = np.ndarray[Any, Any]

#: The longest header that is accepted, in bytes, as in the format's own library.
LONGEST_HEADER = 100_000_000
#: NumPy's largest number of dimensions.
_DIMS = 64

DTYPES = {"BOOL": np.dtype(np.bool_), "U8": np.dtype(np.uint8), "I8": np.dtype(np.int8), "U16": np.dtype("<u2"),
          "I16": np.dtype("<i2"), "U32": np.dtype("<u4"), "I32": np.dtype("<i4"), "U64": np.dtype("<u8"),
          "I64": np.dtype("<i8"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
#: The format's name of bfloat16. Without the package ml_dtypes it is read as float32, which holds all of its values.
_BFLOAT = "BF16"
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class SafetensorsError(ValueError):
    """A file is not safetensors, or does not match its header."""


@dataclass(frozen=True)
class Entry:
    """One tensor in a file: the name of its dtype, its shape, and the positions of its first byte and past its last."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


# -- reading -----------------------------------------------------------------------------------------------------------


def read_header(file: BinaryIO, size: int, name: str) -> tuple[dict[str, Entry], dict[str, str]]:
    """The entries of the tensors in a file of ``size`` bytes, and the metadata. Raises :class:`SafetensorsError`."""
    first = file.read(8)
    if len(first) < 8:
        raise SafetensorsError(f"{name}: not a safetensors file: it has only {count_of(len(first), 'byte')}, fewer than "
                               "the length's 8")
    length = struct.unpack("<Q", first)[0]
    if length > min(size - 8, LONGEST_HEADER):
        if first[:2] == b"PK" or first[:1] == b"\x80":
            raise SafetensorsError(f"{name} looks like a file of torch.save or pickle, which can run any code when it is read, "
                                   "so it is not loaded. Save the tensors with safetensors.torch.save_file instead")
        raise SafetensorsError(f"{name}: not a safetensors file: the header's length would be {length:,} bytes, but the file "
                               f"has {size:,} (the limit is {LONGEST_HEADER:,})")
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"{name}: the header is not valid JSON: {error}") from None
    if not isinstance(header, dict):
        raise SafetensorsError(f"{name}: the header must be a JSON object, but is a {type(header).__name__}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise SafetensorsError(f"{name}: __metadata__ must map names to strings")
    found = {key: _entry(f"{name}: {key!r}", value, 8 + length) for key, value in header.items()}
    at = 8 + length
    for key, entry in sorted(found.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != at:
            raise SafetensorsError(f"{name}: {key!r} begins at byte {entry.start:,}, but the data before it ends at {at:,}: "
                                   "gaps and overlaps are not allowed")
        at = entry.stop
    if at != size:
        raise SafetensorsError(f"{name}: the tensors end at byte {at:,}, but the file has {size:,} bytes")
    return found, metadata


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of a JSON object. Raises ValueError for a name that is repeated."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a name is repeated among {sorted(k for k, _ in pairs)[:10]}")
    return found


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _entry(where: str, value: Any, begin: int) -> Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise SafetensorsError(f"{where} must have a dtype, a shape and data_offsets, but is {str(value)[:80]}")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or (dtype not in DTYPES and dtype != _BFLOAT):
        raise SafetensorsError(f"{where} has the dtype {str(dtype)[:80]!r}, expected one of {', '.join([*DTYPES, _BFLOAT])}")
    if not isinstance(shape, list) or len(shape) > _DIMS or not all(map(_whole, shape)):
        raise SafetensorsError(f"{where}: a shape is a list of at most {_DIMS} sizes, but got {str(shape)[:80]}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_whole, offsets)) or offsets[0] > offsets[1]:
        raise SafetensorsError(f"{where}: data_offsets are two positions, but got {str(offsets)[:80]}")
    nbytes = math.prod(shape) * (2 if dtype == _BFLOAT else DTYPES[dtype].itemsize)
    if nbytes != offsets[1] - offsets[0]:
        raise SafetensorsError(f"{where}: {dtype} of shape {shape} has {nbytes} bytes, but data_offsets {offsets} give it "
                               f"{offsets[1] - offsets[0]}")
    return Entry(dtype, tuple(shape), begin + offsets[0], begin + offsets[1])


def read_array(file: BinaryIO, entry: Entry, name: str) -> Array:
    """Read one tensor. Raises :class:`SafetensorsError` if the file has become shorter."""
    file.seek(entry.start)
    values = file.read(entry.stop - entry.start)
    if len(values) != entry.stop - entry.start:
        raise SafetensorsError(f"{name}: the file ends inside a tensor")
    try:
        if entry.dtype == _BFLOAT:
            with suppress(ImportError):
                return np.frombuffer(values, bfloat16()).reshape(entry.shape)
            # A bfloat16 is the upper half of a float32.
            return (np.frombuffer(values, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(entry.shape)
        dtype = DTYPES[entry.dtype]
        array = np.frombuffer(values, dtype).reshape(entry.shape)
    except ValueError as error:
        raise SafetensorsError(f"{name}: an array of shape {list(entry.shape)} cannot be made: {error}") from None
    if entry.dtype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
        raise SafetensorsError(f"{name}: a BOOL tensor holds bytes that are neither 0 nor 1")
    return array.astype(dtype.newbyteorder("="), copy=False)


# -- writing -----------------------------------------------------------------------------------------------------------


def write_file(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write tensors to a file in an existing folder, completely or, if anything fails, not at all.

    Raises OSError, and TypeError for a dtype that the format does not have.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    with replacing(target) as file:
        write(file, tensors, metadata)


def write(file: BinaryIO, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write tensors to an open file, one at a time. The header names them in the order in which they are given.

    A tensor has ``dtype`` and ``shape``, and is converted by ``np.asarray`` only when it is written.
    """
    # The widest dtypes first, so that every tensor is aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries: dict[str, Any] = {}
    at = 0
    for name in names:
        tensor = tensors[name]
        dtype = np.dtype(tensor.dtype)
        named = _BFLOAT if dtype.name == "bfloat16" else _NAMES.get(dtype.newbyteorder("<"))
        if named is None:
            raise TypeError(f"{name!r} is {tensor.dtype}, which safetensors has no name for here: expected one of "
                            f"{', '.join(d.name for d in _NAMES)}")
        nbytes = math.prod(tensor.shape) * dtype.itemsize
        entries[name] = {"dtype": named, "shape": list(tensor.shape), "data_offsets": [at, at + nbytes]}
        at += nbytes
    header = {"__metadata__": dict(metadata)} if metadata else {}
    header |= {name: entries[name] for name in tensors}
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > LONGEST_HEADER:
        raise ValueError(f"the header would have {len(text):,} bytes, more than the limit of {LONGEST_HEADER:,}")
    file.write(struct.pack("<Q", len(text)) + text)
    for array in arrays_of(tensors[name] for name in names):
        file.write(array.data)


def arrays_of(tensors: Iterable[Any]) -> Iterable[Array]:
    """Each tensor as an array of bytes, contiguous and little-endian."""
    for tensor in tensors:
        array = np.ascontiguousarray(np.asarray(tensor))
        yield array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8)

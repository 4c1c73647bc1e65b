"""Reader of IDX, the file format of MNIST: a magic number, big-endian sizes, then the values.

Every length is checked before memory is allocated for it, so that a damaged header causes an error, not a huge allocation.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

#: Dtypes by the third byte of the magic number.
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

#: The largest compression ratio of deflate.
_MOST = 1032


class IdxError(ValueError):
    """A file is not IDX, or holds more or less than its header says."""


def read_idx(path: str | os.PathLike[str], ndim: int | None = None) -> np.ndarray[Any, Any]:
    """The array in an IDX file, in native byte order; a file whose name ends in ``.gz`` is decompressed.

    Raises :class:`IdxError`, which names the file, for a wrong magic number, a number of dimensions other than ``ndim``, and
    a length other than the header's.
    """
    path = Path(path)
    size = path.stat().st_size
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path, "rb") if packed else open(path, "rb") as file:
            dtype, shape = _header(path, file)
            if ndim is not None and len(shape) != ndim:
                raise IdxError(f"{path}: expected {ndim} dimensions, but the header gives {len(shape)}: {list(shape)}")
            expected = math.prod(shape) * dtype.itemsize
            if expected > (size * _MOST if packed else size):
                raise IdxError(f"{path}: the header declares {expected} bytes of values {list(shape)}, more than the file of "
                               f"{size} bytes can hold")
            values = file.read(expected + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise IdxError(f"{path}: incomplete or damaged gzip file: {error}") from None
    if len(values) != expected:
        held = len(values) if len(values) < expected else f"more than {expected}"
        raise IdxError(f"{path}: the header declares {expected} bytes of values {list(shape)}, but the file holds {held}")
    return np.frombuffer(values, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _header(path: Path, file: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or not magic[3]:
        raise IdxError(f"{path}: not an IDX file: it starts with {magic.hex(' ') or 'nothing'}, expected 00 00, a type "
                       f"({', '.join(f'{t:02x}' for t in TYPES)}) and the number of dimensions")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise IdxError(f"{path}: the header ends before the sizes of its {magic[3]} dimensions")
    return np.dtype(TYPES[magic[2]]), struct.unpack(f">{magic[3]}I", sizes)

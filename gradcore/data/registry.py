"""Data sets by name, or from a folder of IDX files, a file of arrays or a text file."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from gradcore.data.dataset import Array, Dataset
from gradcore.data.digits import load_digits
from gradcore.data.idx import IdxError, read_idx
from gradcore.data.text import Text, from_string, load_python_docs

#: Where Debian's package dataset-fashion-mnist puts its files.
DEBIAN = Path("/usr/share/datasets/fashion-mnist")

_FASHION = ("Xiao, Rasul and Vollgraf, Fashion-MNIST, arXiv:1708.07747, "
            "https://github.com/zalandoresearch/fashion-mnist, MIT license")
#: The arrays of an .npz file, by the names that those of Keras have.
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def names() -> tuple[str, ...]:
    """The names that :func:`load` knows."""
    return ("digits", "fashion-mnist", "python-docs")


def load(name: str | os.PathLike[str]) -> Dataset | Text:
    """A data set by name, or the path of a folder of IDX files, of an .npz file, or of a text file (UTF-8).

    ``digits`` comes with the package, ``python-docs`` with Python. ``fashion-mnist`` is looked for in
    ``$GRADCORE_DATA/fashion-mnist``, ``$GRADCORE_DATA`` and where Debian's package puts it. Raises FileNotFoundError, which
    says what to install, ValueError for an unknown name, and for damaged files, of IDX :class:`~gradcore.data.idx.IdxError`.
    """
    if name == "digits":
        return load_digits()
    if name == "fashion-mnist":
        return _fashion_mnist()
    if name == "python-docs":
        return load_python_docs()
    folder = Path(name)
    if folder.is_dir():
        return load_folder(folder)
    if folder.suffix == ".npz" and folder.is_file():
        return load_arrays(folder)
    if folder.is_file():
        try:
            text = folder.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{folder} is no text file in UTF-8 ({error}), nor an .npz file of arrays; of IDX files, "
                             "the folder is given") from None
        return from_string(folder.stem, text, f"the text file {folder}")
    raise ValueError(f"unknown data set {str(name)!r}: expected one of {', '.join(names())}, the path of a folder with "
                     "train-images-idx3-ubyte, train-labels-idx1-ubyte and the same of t10k (.gz or not), of an .npz file with "
                     f"{', '.join(_ARRAYS)}, or of a text file")


def _fashion_mnist() -> Dataset:
    places = [DEBIAN]
    if root := os.environ.get("GRADCORE_DATA"):
        places = [Path(root) / "fashion-mnist", Path(root), DEBIAN]
    for folder in places:
        if _find(folder, "train-images-idx3-ubyte"):
            return load_folder(folder, "fashion-mnist", _FASHION)
    raise FileNotFoundError(f"fashion-mnist was not found in {', '.join(map(str, places))}: install the Debian package "
                            "dataset-fashion-mnist, or set GRADCORE_DATA to the folder of its four IDX files")


def load_folder(folder: Path, name: str | None = None, source: str | None = None) -> Dataset:
    """A data set from the four files in which MNIST and its variants are distributed.

    Raises FileNotFoundError for a missing file, :class:`~gradcore.data.idx.IdxError` for files that do not match.
    """
    return _dataset(name or folder.resolve().name, source or f"IDX files in {folder}", str(folder), *_read(folder, "train"),
                    *_read(folder, "t10k"))


def load_arrays(path: Path) -> Dataset:
    """A data set from the arrays ``x_train``, ``y_train``, ``x_test`` and ``y_test`` of an .npz file.

    Samples are numbers [N, ...], those of uint8 scaled to [0, 1], classes integers [N]. Raises ValueError, which names the
    file, for others.
    """
    with path.open("rb") as opened:
        try:
            if not zipfile.is_zipfile(opened):
                raise ValueError("it is not what numpy.savez writes")
            with np.load(opened) as file:
                if lacking := [name for name in _ARRAYS if name not in file]:
                    raise ValueError(f"it lacks {', '.join(lacking)}, and has {', '.join(file) or 'no arrays'}")
                arrays = {name: np.asarray(file[name]) for name in _ARRAYS}
        except Exception as error:
            # Of damaged files, and of encrypted ones, zipfile and NumPy raise errors of many kinds.
            raise ValueError(f"{path} is no data set: {error}") from None
    try:
        for name, a in arrays.items():
            shape = "[N, ...]" if name.startswith("x") else "[N]"
            if a.dtype.kind not in "biuf" or (a.ndim < 2 if shape == "[N, ...]" else a.ndim != 1):
                raise ValueError(f"{name} must be numbers of shape {shape}, but is {a.dtype.name} {list(a.shape)}")
        parts = [_part(arrays[x], arrays[y], x, y) for x, y in (_ARRAYS[:2], _ARRAYS[2:])]
    except ValueError as error:
        raise ValueError(f"{path} is no data set: {error}") from None
    (train_x, train_y), (test_x, test_y) = [(x if x.dtype == np.uint8 else x.astype(np.float32), y) for x, y in parts]
    return _dataset(path.stem, f"the file {path}", str(path), train_x, train_y, test_x, test_y)


def _dataset(name: str, source: str, where: str, train_x: Array, train_y: Array, test_x: Array, test_y: Array) -> Dataset:
    if train_x.shape[1:] != test_x.shape[1:]:
        raise IdxError(f"{where}: images of {list(train_x.shape[1:])} for training and {list(test_x.shape[1:])} for "
                       "testing")
    classes = int(max(train_y.max(), test_y.max())) + 1
    return Dataset(name, _scaled(train_x), train_y, _scaled(test_x), test_y, classes, source, train_x.shape[1:])


def _read(folder: Path, part: str) -> tuple[Array, Array]:
    images, labels = (_there(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    return _part(read_idx(images, 3), read_idx(labels, 1), images, labels)


def _part(x: Array, y: Array, images: object, labels: object) -> tuple[Array, Array]:
    """Images and labels, as int64. Raises IdxError, which names what they are from, unless they go together."""
    if len(x) != len(y):
        raise IdxError(f"{images} holds {len(x)} images, and {labels} {len(y)} labels")
    if y.dtype.kind not in "iu":
        raise IdxError(f"{labels}: labels must be integers, but are {y.dtype.name}")
    if not x.size:
        raise IdxError(f"{images}: expected at least one image of at least one element, but the shape is {list(x.shape)}")
    whole = y.astype(np.int64)
    if whole.min() < 0:
        # As int64, those that are too large are negative, too.
        at = whole.argmin()
        raise IdxError(f"{labels}: labels must be {'at least 0' if y[at] < 0 else 'below 2**63'}, but label {at} is {y[at]}")
    return x, whole


def _find(folder: Path, name: str) -> Path | None:
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def _there(folder: Path, name: str) -> Path:
    found = _find(folder, name)
    if found is None:
        raise FileNotFoundError(f"{folder} has neither {name} nor {name}.gz")
    return found


def _scaled(images: Array) -> Array:
    flat = images.reshape(len(images), -1).astype(np.float32)
    if images.dtype.kind in "iu":
        flat /= np.float32(np.iinfo(images.dtype).max)
    return flat

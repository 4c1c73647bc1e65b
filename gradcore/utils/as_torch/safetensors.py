"""``safetensors.torch`` and ``safe_open``: the package's own make PyTorch's tensors."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from gradcore import functional
from gradcore._tensor import Tensor
from gradcore.nn import Module
from gradcore.utils.files import Leaf
from gradcore.utils.safetensors import Entry, read_array, read_header, write, write_file

__all__ = ["load", "load_file", "load_model", "safe_open", "save", "save_file", "save_model", "storage_ptr", "storage_size"]


class safe_open:
    """A file that is read tensor by tensor: with ``keys``, ``metadata``, ``get_tensor`` and ``get_slice``."""

    def __init__(self, filename: str | os.PathLike[str], framework: str = "pt", device: Any = "cpu", **named: Any) -> None:
        self._name, self._device, self._reading = str(filename), device, Lock()
        self._file = open(filename, "rb")  # noqa: SIM115 - until __exit__
        try:
            self._entries, self._metadata = read_header(self._file, os.fstat(self._file.fileno()).st_size, self._name)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()

    def keys(self) -> list[str]:
        return sorted(self._entries)

    offset_keys = keys

    def metadata(self) -> dict[str, str] | None:
        # Packages refuse a file whose metadata lack what they write, and take one without any.
        return dict(self._metadata) or None

    def get_tensor(self, name: str) -> Tensor:
        # Packages read in several threads.
        with self._reading:
            array = read_array(self._file, self._entries[name], self._name)
        return functional.tensor(array, device=self._device)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self, name, self._entries[name])


class _Slice:
    """A tensor of a file, which is read when it is indexed."""

    def __init__(self, opened: safe_open, name: str, entry: Entry) -> None:
        self._opened, self._name, self._entry = opened, name, entry

    def get_shape(self) -> list[int]:
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        return self._entry.dtype

    def __getitem__(self, index: Any) -> Any:
        return self._opened.get_tensor(self._name)[index]


def opening(others: Callable[..., Any]) -> Callable[..., Any]:
    """The package's ``safe_open``, which is left the files that are read for another framework."""

    def opened(filename: Any, framework: str = "pt", device: Any = "cpu", **named: Any) -> Any:
        if framework in ("pt", "torch", "pytorch"):
            return safe_open(filename, framework, device)
        return others(filename, framework=framework, device=device, **named)

    return opened


def load_file(filename: str | os.PathLike[str], device: Any = "cpu", **named: Any) -> dict[str, Tensor]:
    """The tensors of a file, by name. Raises :class:`SafetensorsError`."""
    with safe_open(filename, device=device) as file:
        return dict(zip(file.keys(), map(file.get_tensor, file.keys()), strict=True))


def save_file(tensors: Mapping[str, Tensor], filename: str | os.PathLike[str],
              metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a file. Raises OSError, and TypeError for a dtype that the format does not have."""
    write_file(filename, _leaves(tensors), metadata or {})


def load(data: bytes) -> dict[str, Tensor]:
    """The tensors of a file that has been read. Raises :class:`SafetensorsError`."""
    entries, _ = read_header(io.BytesIO(data), len(data), "bytes")
    return {name: functional.tensor(read_array(io.BytesIO(data), entry, "bytes")) for name, entry in entries.items()}


def save(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """What :func:`save_file` writes."""
    file = io.BytesIO()
    write(file, _leaves(tensors), metadata or {})
    return file.getvalue()


def save_model(model: Module, filename: str, metadata: dict[str, str] | None = None, force_contiguous: bool = True) -> None:
    """Write a module's tensors to a file, each once, though it may have several names."""
    first: dict[tuple[int, Any], str] = {}
    names = {name: first.setdefault((storage_ptr(x), x.spec), name) for name, x in model.state_dict().items()}
    also = {name: kept for name, kept in names.items() if name != kept}
    save_file({name: x for name, x in model.state_dict().items() if name not in also}, filename, {**also, **(metadata or {})})


def load_model(model: Module, filename: str | os.PathLike[str], strict: bool = True,
               device: Any = "cpu") -> tuple[set[str], list[str]]:
    """Read a module's tensors: the names that are missing, those of a tensor that the file has aside, and those in excess.

    Raises RuntimeError if there are any, unless told otherwise.
    """
    missing, unexpected = model.load_state_dict(load_file(filename, device), strict=False)
    read = {storage_ptr(x) for name, x in model.state_dict().items() if name not in missing}
    absent = {name for name in missing if storage_ptr(model.state_dict()[name]) not in read}
    if strict and (absent or unexpected):
        raise RuntimeError(f"{filename} does not fit {type(model).__name__}: missing {sorted(absent)}, in excess {unexpected}")
    return absent, unexpected


def storage_ptr(tensor: Tensor) -> int:
    """What tells a tensor's memory from others'."""
    return id(tensor.storage)


def storage_size(tensor: Tensor) -> int:
    """The bytes of the memory that a tensor shows a part of."""
    return tensor.storage.extent


def _leaves(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: Leaf(x) for name, x in tensors.items()}

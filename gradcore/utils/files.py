"""``gradcore.save`` and ``gradcore.load``: state dicts and checkpoints in safetensors files, without pickle.

A mapping of names to tensors becomes a plain file, which any library for the format can read. Other contents of a checkpoint,
such as an optimizer's state, an epoch or a list, are stored as JSON in the file's metadata, in which tensors are names. A
tensor that occurs in several places is one tensor again when loaded: a checkpoint stores its bytes once; a plain file stores
them for each name, and lists in the metadata which names are the same tensor. A state dict's ``_metadata``, such as the version
of each module's class, is stored with it.
"""

from __future__ import annotations

import io
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gradcore import functional
from gradcore._tensor import Tensor
from gradcore.devices.device import Device
from gradcore.utils.safetensors import Entry, SafetensorsError, read_array, read_header, write, write_file

__all__ = ["SafetensorsError", "load", "save"]

Place = str | os.PathLike[str] | BinaryIO

#: The metadata's key for the contents of a checkpoint that is not a plain mapping.
_TREE = "gradcore"
#: The metadata's key for the names of a plain mapping that are the same tensor: a dict from each to the first of them.
_SHARED = "gradcore.shared"
#: The metadata's key for the ``_metadata`` of a plain mapping that is a state dict.
_MODULES = "gradcore.modules"
#: The types that keys of a dict may have.
_KEYS = (bool, int, float, str, tuple, type(None))
#: The largest depth of a checkpoint.
_DEPTH = 100


class Leaf:
    """A tensor on any device, which is read only when it is written."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self.dtype = tensor.spec.dtype
        self.shape = tensor.spec.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        t = self._tensor
        if t.device.type == "meta":
            raise TypeError("a tensor on meta has no values to save")
        return t.detach().numpy() if t.device.type == "cpu" else t.device.read(t.storage, t.spec)


def save(obj: Any, f: Place) -> None:
    """Write tensors, NumPy arrays, numbers, strings and None, in dicts, lists and tuples, to a path or an open binary file.

    A tensor that occurs several times, such as a tied weight in a state dict, is one tensor when loaded; tensors that share
    only some of their bytes, or have different shapes, become separate. A file is written completely or not at all. Raises
    TypeError for other values, with their place in ``obj``, and OSError.
    """
    tensors: dict[str, Any] = {}
    named: dict[Any, str] = {}
    metadata = {}
    in_metadata: dict[str, Any] = {}
    modules = _describe(_of_modules(obj), "_metadata", in_metadata, {}, 0)
    if isinstance(obj, Mapping) and all(isinstance(k, str) and isinstance(v, (Tensor, np.ndarray)) for k, v in obj.items()) \
            and "__metadata__" not in obj and not in_metadata:
        tensors = {name: _leaf(value) for name, value in obj.items()}
        if modules is not None:
            metadata[_MODULES] = json.dumps(modules, separators=(",", ":"))
        # In sorted order, which is the same after another program has written the file again.
        firsts = {name: named.setdefault(_identity(value), name) for name, value in sorted(obj.items())}
        if shared := {name: first for name, first in firsts.items() if name != first}:
            metadata[_SHARED] = json.dumps(shared, separators=(",", ":"))
    else:
        metadata[_TREE] = json.dumps(_describe(obj, "", tensors, named, 0), separators=(",", ":"))
    if isinstance(f, (str, os.PathLike)):
        write_file(f, tensors, metadata)
    else:
        write(f, tensors, metadata)


def _leaf(value: Any) -> Any:
    return Leaf(value) if isinstance(value, Tensor) else value


def _of_modules(value: Any) -> Any:
    """The ``_metadata`` of a state dict, which has what each module says of itself by its path; None for any other value."""
    found = getattr(value, "_metadata", None) if isinstance(value, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    for path, said in found.items():
        # load() takes no others.
        if not (isinstance(path, str) and isinstance(said, Mapping)):
            raise TypeError(f"save: _metadata of a state dict maps paths of modules to dicts, but {path!r} to "
                            f"{type(said).__name__}")
    return found


def _identity(value: Any) -> Any:
    """A key that is equal for tensors with the same storage and layout; an array is identified by itself."""
    return (id(value.storage), value.spec) if isinstance(value, Tensor) else id(value)


def _describe(value: Any, path: str, tensors: dict[str, Any], named: dict[Any, str], depth: int) -> Any:
    """``value`` as JSON: plain values as they are, anything else as a list of its kind and its parts.

    ``named`` maps the identities of the tensors so far to their names.
    """
    if depth > _DEPTH:
        raise TypeError(f"save: {path[:80]!r}... is nested more than {_DEPTH} levels deep")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (Tensor, np.ndarray)):
        identity = _identity(value)
        name = named.get(identity)
        if name is None:
            name = path or "tensor"
            # The header keeps one name for itself.
            while name in tensors or name == "__metadata__":
                name += "_"
            tensors[name], named[identity] = _leaf(value), name
        return ["tensor" if isinstance(value, Tensor) else "array", name]
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, _KEYS):
                raise TypeError(f"save: {path or 'the object'} has a key of type {type(key).__name__}; numbers, strings, None "
                                "and tuples can be keys")
        pairs = [[_describe(k, path, tensors, named, depth + 1), _describe(v, _join(path, k), tensors, named, depth + 1)]
                 for k, v in value.items()]
        modules = _of_modules(value)
        return ["dict", pairs] if modules is None else ["state_dict", [
            pairs, _describe(modules, _join(path, "_metadata"), tensors, named, depth + 1)]]
    if isinstance(value, (list, tuple)):
        return ["tuple" if isinstance(value, tuple) else "list",
                [_describe(v, _join(path, k), tensors, named, depth + 1) for k, v in enumerate(value)]]
    if hasattr(value, "state_dict"):
        raise TypeError(f"save: {path or 'the object'} is a {type(value).__name__}; save its state_dict(), which "
                        "load_state_dict() takes")
    instead = ("; sorted() makes a list of it" if isinstance(value, (set, frozenset)) else
               "; vars() makes a dict of it" if hasattr(value, "__dict__") and not callable(value) else "")
    raise TypeError(f"save: {path or 'the object'} is of type {type(value).__name__}; tensors, arrays, numbers, strings, None, "
                    f"dicts, lists and tuples can be saved{instead}")


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def load(f: Place, map_location: str | Device | dict[str, Any] | Callable[..., Any] | None = None, *,
         weights_only: bool = True, mmap: bool | None = None) -> Any:
    """Read what :func:`save` wrote, or the tensors of any safetensors file as a dict.

    Tensors are on the CPU, or the device ``map_location``, or where it, as a dict, maps ``"cpu"``; a function, such as
    ``lambda storage, location: storage``, leaves them on the CPU. A file cannot run code, so ``weights_only`` makes no
    difference; ``mmap`` has no effect.
    Raises :class:`SafetensorsError`, which says what is wrong, for any other file, and OSError.
    """
    # A file does not say on which device a tensor was.
    place = map_location.get("cpu") if isinstance(map_location, dict) else None if callable(map_location) else map_location
    if isinstance(f, (str, os.PathLike)):
        path = Path(f)
        with open(path, "rb") as file:
            return _load(file, path.stat().st_size, str(path), place)
    size = f.seek(0, io.SEEK_END)
    f.seek(0)
    return _load(f, size, "the file", place)


def _load(file: BinaryIO, size: int, name: str, device: str | int | Device | None) -> Any:
    entries, metadata = read_header(file, size, name)
    checkpoint = _Checkpoint(file, entries, name, device)
    if _TREE in metadata:
        return checkpoint.build(_parsed(metadata[_TREE], name))
    found = _plain(file, entries, _parsed(metadata.get(_SHARED, "{}"), name), name, device)
    return checkpoint.state_dict(found, _parsed(metadata[_MODULES], name)) if _MODULES in metadata else found


class _Checkpoint:
    """Makes what :func:`_describe` has described."""

    def __init__(self, file: BinaryIO, entries: dict[str, Entry], name: str, device: str | int | Device | None) -> None:
        self._file = file
        self._entries = entries
        self._name = name
        self._device = device
        #: The tensors and arrays so far, by kind and name.
        self._made: dict[tuple[str, str], Any] = {}

    def build(self, node: Any, depth: int = 0) -> Any:
        if not isinstance(node, (list, dict)):
            return node
        kind, what = node if isinstance(node, list) and len(node) == 2 and depth <= _DEPTH else (None, None)
        if kind in ("tensor", "array") and isinstance(what, str) and what in self._entries:
            if (kind, what) not in self._made:
                array = read_array(self._file, self._entries[what], self._name)
                self._made[kind, what] = array.copy() if kind == "array" else functional.tensor(array, device=self._device)
            return self._made[kind, what]
        if kind in ("list", "tuple") and isinstance(what, list):
            parts = [self.build(part, depth + 1) for part in what]
            return parts if kind == "list" else tuple(parts)
        if kind == "state_dict" and isinstance(what, list) and len(what) == 2:
            return self.state_dict(self.build(["dict", what[0]], depth), what[1], depth + 1)
        if kind == "dict" and isinstance(what, list) and all(isinstance(p, list) and len(p) == 2 for p in what):
            pairs = [(self.build(k, depth + 1), self.build(v, depth + 1)) for k, v in what]
            # A tuple that holds a list is not hashable, so it is no key.
            with suppress(TypeError):
                return dict(pairs)
        raise self._unexpected(node)

    def state_dict(self, found: dict[Any, Any], modules: Any, depth: int = 0) -> Any:
        """A state dict, with what ``modules`` describes as its ``_metadata``."""
        said = self.build(modules, depth)
        if not isinstance(said, dict) or not all(isinstance(k, str) and isinstance(v, dict) for k, v in said.items()):
            raise self._unexpected(modules)
        made: Any = OrderedDict(found)
        made._metadata = OrderedDict(said)
        return made

    def _unexpected(self, node: Any) -> SafetensorsError:
        return SafetensorsError(f"{self._name}: unexpected metadata {str(node)[:80]}")


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SafetensorsError(f"{name}: the metadata is not valid JSON: {error}") from None


def _plain(file: BinaryIO, entries: dict[str, Entry], shared: Any, name: str,
           device: str | int | Device | None) -> dict[str, Tensor]:
    """A plain mapping; names that ``shared`` lists as the same get one tensor, unless another program made them differ."""
    if not isinstance(shared, dict) or not all(isinstance(first, str) for first in shared.values()):
        raise SafetensorsError(f"{name}: unexpected metadata {str(shared)[:80]}")
    found: dict[str, Tensor] = {}
    for key in sorted(entries):
        array = read_array(file, entries[key], name)
        first = shared.get(key)
        if first in found and _equal(array, read_array(file, entries[first], name)):
            found[key] = found[first]
        else:
            found[key] = functional.tensor(array, device=device)
    return {key: found[key] for key in entries}


def _equal(a: Any, b: Any) -> bool:
    """Whether two arrays are equal bit by bit."""
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(*(x.reshape(-1).view(np.uint8) for x in (a, b)))

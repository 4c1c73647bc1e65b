"""Names that PyTorch has and gradcore lacks: they raise NotImplementedError, which names the nearest equivalent.

``torch_names.txt`` beside this file has PyTorch's names, as tests/host/torch/test_missing.py writes them; PyTorch is not asked.
The errors are AttributeErrors too (ImportErrors in ``from gradcore import name``), so a script that looks for a name with
``hasattr`` finds none. A module learns of a name by its ``__getattr__``, a class by a descriptor of that name: a class that
has ``__getattr__`` pays for every attribute that is there.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from functools import cache
from importlib.abc import MetaPathFinder
from opcode import opmap
from pathlib import Path
from types import ModuleType
from typing import Any

from gradcore.errors import NotCovered, NotCoveredImport, NotCoveredModule
from gradcore.nearest import NEAREST

#: Where a name is looked for that is not where PyTorch has it.
_ELSEWHERE = ("", "Tensor", "nn.functional", "linalg", "nn", "optim", "cuda", "amp", "autograd")
_IMPORT_FROM = opmap["IMPORT_FROM"]


def sections(file: str) -> dict[str, str]:
    """The sections of a list of PyTorch's names beside this file, by their path below ``torch``, which itself is ``""``."""
    parts = [part.partition("]\n") for part in Path(__file__).with_name(file).read_text().split("\n[")[1:]]
    return {path.removeprefix("torch").removeprefix("."): text for path, _, text in parts}


@cache
def torch_names() -> dict[str, frozenset[str]]:
    """The documented names of PyTorch's modules and of its tensors, by the paths of these."""
    return {path: frozenset(names.split()) for path, names in sections("torch_names.txt").items()}


class Finder(MetaPathFinder):
    """Asked last for a module of gradcore's that no file is: one of PyTorch's raises, and names what is nearest."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        root, _, rest = fullname.partition(".")
        above, _, name = rest.rpartition(".")
        if root == "gradcore" and name in torch_names().get(above, ()):
            raise NotCoveredModule(_text(f"module {'.'.join(filter(None, (root, above)))!r}", above, name), name=fullname)


class _Absent:
    """A method of a class of PyTorch's that is not here."""

    __slots__ = ("name", "path")

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path

    def __get__(self, instance: Any, kind: type | None = None) -> Any:
        # Python would tie the instance to an error without a name.
        owner = (kind or type(instance)).__name__
        raise NotCovered(_text(f"{owner!r} object", self.path, self.name), name=self.name)


def mark(kind: Any, path: str) -> None:
    """Give a class, PyTorch's ``path``, a descriptor for each of PyTorch's names that it has not."""
    for name in torch_names()[path]:
        if not _has(kind, name):
            setattr(kind, name, _Absent(name, path))
    kind.__dir__ = lambda self: [name for name in object.__dir__(self) if not _marked(type(self), name)]


def watch(module: ModuleType, path: str) -> None:
    """Give a module, PyTorch's ``path``, what answers for names that it has not, those of modules in it included."""
    if not hasattr(module, "__path__"):
        module.__path__ = []
    # Users know gradcore.functional.linalg as gradcore.linalg.
    known = f"{__package__}.{path}"
    name = known if sys.modules.get(known) is module else module.__name__
    module.__getattr__ = lookup(name, path)  # type: ignore[method-assign]


def show(module: ModuleType, path: str) -> None:
    """Make ``dir()`` of a module, PyTorch's ``path``, show what it defines or exports, and not what it only imports."""

    def __dir__() -> list[str]:
        known = torch_names().get(path, frozenset()).union(getattr(module, "__all__", ()))
        return [name for name, value in vars(module).items()
                if name in known or name.startswith("__") or getattr(value, "__module__", None) == module.__name__
                or getattr(value, "__name__", None) == f"{module.__name__}.{name}"]

    module.__dir__ = __dir__  # type: ignore[method-assign]


def lookup(module: str, path: str) -> Callable[..., Any]:
    """A module's ``__getattr__``: it raises :class:`NotCovered` for PyTorch's names and AttributeError for others.

    Whoever asks is so many frames up.
    """

    def __getattr__(name: str, frames: int = 1) -> Any:
        if name.startswith("__") or name not in torch_names()[path]:
            # Python looks for underscored ones itself, all the time.
            close = [] if name.startswith("_") else difflib.get_close_matches(name, dir(sys.modules[module]), 1)
            hint = f". Did you mean: {close[0]!r}?" if close else ""
            # Of None, or a traceback would end with Python's own hint, the same once more.
            raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name, obj=None)
        text = _text(f"module {module!r}", path, name)
        caller = sys._getframe(frames)
        if caller.f_code.co_code[caller.f_lasti] == _IMPORT_FROM:
            # Of an AttributeError the import would make an ImportError without a word of this.
            raise NotCoveredImport(text)
        raise NotCovered(text)

    return __getattr__


def _text(owner: str, path: str, name: str) -> str:
    of = ".".join(part for part in ("torch", path, name) if part)
    return f"{owner} has no attribute {name!r}: {of} is not implemented by gradcore. {nearest(path, name)}"


def nearest(path: str, name: str) -> str:
    """What to use for PyTorch's ``path.name``: a sentence that names something that is there."""
    here = f"{name}_" if _has(at(path), f"{name}_") else None
    told = _told().get(f"{path}.{name}") or _told().get(f"{path}.*") or (here and _path(path, here)) or _elsewhere(name)
    told = told or _told().get(name)
    stem = name.removesuffix("_")
    if told is None and stem != name and _has(at(path), stem):
        told = f"x.copy_(x.{stem}(...))" if path == "Tensor" else _path(path, stem)
    variants = stem, name.removesuffix("_ex"), name.removesuffix("_copy"), name.removeprefix("Lazy")
    for same in (*variants, variants[-1].replace("3d", "2d")):
        told = told or (_path(path, same) if _has(at(path), same) else _elsewhere(same))
    return f"Nearest: {told or 'see docs/ops.md and docs/pytorch.md'}"


def _elsewhere(name: str) -> str | None:
    """Where gradcore has a name of PyTorch's that is asked for elsewhere; a module of that name is another thing."""
    return next((_path(p, name) for p in _ELSEWHERE if name in torch_names()[p] and _has(at(p), name)
                 and not isinstance(vars(at(p)).get(name), ModuleType)), None)


@cache
def _told() -> dict[str, str]:
    return {name: what for what, names in NEAREST.items() for name in names.split()}


def _path(path: str, name: str) -> str:
    return ".".join(part for part in ("gradcore", path, name) if part)


def at(path: str) -> Any:
    """The module or class at a path below gradcore, which itself is ``""``."""
    found: Any = sys.modules["gradcore"]
    for part in path.split(".") if path else ():
        found = vars(found)[part]
    return found


def _has(owner: Any, name: str) -> bool:
    """Is the name there, without asking ``__getattr__``?"""
    if isinstance(owner, ModuleType):
        return name in vars(owner)
    return any(name in vars(c) for c in owner.__mro__) and not _marked(owner, name)


def _marked(kind: type, name: str) -> bool:
    return isinstance(next((vars(c)[name] for c in kind.__mro__ if name in vars(c)), None), _Absent)

"""Packages that were written for PyTorch, on gradcore: after :func:`install`, what they import as ``torch`` is gradcore."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Optional

import gradcore
from gradcore.devices.device import Device, get_device
from gradcore.errors import DeviceError
from gradcore.utils import _dtypes, _foreach, _library, _safetensors_torch
from gradcore.utils._unused import MODULES, NAMES, UnusedModule, stand_in

__all__ = ["install"]

#: Where packages look for what gradcore has elsewhere, or has another thing by that name.
_OWN: dict[str, Any] = {"library": _library, "ops": _library.ops}
_SAFETENSORS = "safetensors.torch"
#: Functions of PyTorch's internal modules that packages call.
_GIVEN: dict[str, dict[str, Any]] = {
    "_dynamo": {**{name: getattr(gradcore.compiler, name) for name in gradcore.compiler.__all__},
                "mark_static_address": lambda tensor, guard=True: None},
    "_C": {"_log_api_usage_once": lambda event: None},
    "jit.annotations": {"Dict": dict, "List": list, "Optional": Optional, "Tuple": tuple},
    "utils._foreach_utils": {"_group_tensors_by_device_and_dtype": _foreach._group_tensors_by_device_and_dtype}}


class _AbsentDevice(str):
    """``cuda:1`` on a machine without it: packages compare and keep the name, and whoever uses it gets a DeviceError."""

    @property
    def type(self) -> str:
        return self.partition(":")[0]

    @property
    def index(self) -> int | None:  # type: ignore[override]
        return int(self.partition(":")[2]) if ":" in self else None

    def __enter__(self) -> Any:
        return get_device(self).__enter__()

    def __exit__(self, *error: Any) -> None:
        """Not reached, as ``__enter__`` raises."""


class _Naming(type(gradcore.device)):  # type: ignore[misc]
    def __call__(cls, type: Any = None, index: int | None = None) -> Any:
        try:
            return super().__call__(type, index)
        except DeviceError:
            name = f"cuda:{type}" if isinstance(type, int) else type if index is None else f"{type}:{index}"
            if re.fullmatch(r"cuda(:\d+)?", str(name)) is None:
                raise
            return _AbsentDevice(name)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, (Device, _AbsentDevice))


class _device(gradcore.device, metaclass=_Naming):
    """``gradcore.device``, but that a GPU may be named where there is none, as in the default of an argument."""


class _Torch(ModuleType):
    """``torch``: gradcore's names, and those that are only mentioned."""

    def __init__(self, finder: _Finder) -> None:
        super().__init__("torch", gradcore.__doc__)
        self.finder = finder
        vars(self).update((name, value) for name, value in vars(gradcore).items() if name == "__getattr__" or name[:2] != "__")
        self.__spec__ = ModuleSpec("torch", finder, is_package=True)
        self.__path__, self.__file__, self.__version__ = gradcore.__path__, gradcore.__file__, finder.version
        self.device, self.dtype = _device, _dtypes.dtype
        vars(self).update(_dtypes.ALL | _dtypes.FUNCTIONS | _foreach.FUNCTIONS | _OWN)


class _Version(Distribution):
    """What says which version of a package is installed."""

    def __init__(self, version: str) -> None:
        self._version = version

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: torch\nVersion: {self._version}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


class _Finder(DistributionFinder, Loader):
    """Finds ``torch.nn`` where ``gradcore.nn`` is, stand-ins for what is only mentioned, and PyTorch's version."""

    def __init__(self, version: str) -> None:
        self.version, self.unused = version, set[str]()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        known = fullname.startswith("torch.") or fullname == _SAFETENSORS or fullname.partition(".")[0] in self.unused
        return ModuleSpec(fullname, self, is_package=True) if known else None

    def find_distributions(self, context: Any = None) -> Iterator[Distribution]:
        if context is None or context.name in (None, "torch"):
            yield _Version(self.version)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return UnusedModule(spec.name) if spec.name.partition(".")[0] in self.unused else None

    def exec_module(self, module: ModuleType) -> None:
        root, _, path = module.__name__.partition(".")
        if root not in self.unused:
            # The import takes what stands here afterwards.
            found = sys.modules[module.__name__] = _found(path) if root == "torch" else _safetensors_torch
            if not hasattr(found, "__path__"):
                found.__path__ = []
            if getattr(found, "__spec__", None) is None:
                found.__spec__ = module.__spec__


def _found(path: str) -> Any:
    """What ``import torch.path`` gives. Raises ImportError for what gradcore lacks and packages do not import in vain."""
    if path in _OWN:
        return _OWN[path]
    try:
        return import_module(f"gradcore.{path}")
    except ImportError:
        if not any(path == of or path.startswith(f"{of}.") for of in MODULES):
            raise
        return UnusedModule(f"torch.{path}", _GIVEN.get(path, {}))


def install(version: str = "2.13.0", unused: Iterable[str] = ()) -> None:
    """Let ``import torch`` and ``import torch.nn`` give gradcore and ``gradcore.nn``, in what this process imports from now on.

    So a package that was written for PyTorch runs on gradcore, as far as that has what the package uses: its model is measured
    on ``meta``, say, for a GPU that is not there. PyTorch need not be installed. ``torch`` says that it is of ``version``, lets
    ``torch.device("cuda")`` be named without a GPU, and stands in for what many packages import without a need for it. So do
    the packages ``unused``, such as ``["torchvision"]``, for all of their names. A stand-in may be mentioned, derived from and
    applied as a decorator, which changes nothing; else it raises NotImplementedError.

    Raises RuntimeError if PyTorch itself has been imported.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        torch = sys.modules["torch"] = _Torch(_Finder(version))
        sys.meta_path.insert(0, torch.finder)
        gradcore.Tensor.dtype = property(lambda self: _dtypes.named(self.spec.dtype))  # type: ignore[assignment]
        for path, names in NAMES.items():
            module = import_module(f"torch.{path}" if path else "torch")
            for name in names.split():
                vars(module).setdefault(name, stand_in(f"torch.{path}".rstrip("."), name))
        for path in MODULES:
            import_module(f"torch.{path}")
        if find_spec("safetensors"):
            safetensors: Any = import_module("safetensors")
            safetensors.safe_open = _safetensors_torch.opening(safetensors.safe_open)
    elif not isinstance(torch, _Torch):
        raise RuntimeError("as_torch.install() must come before the first import of PyTorch, which has been imported")
    torch.finder.unused.update(unused)

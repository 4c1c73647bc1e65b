"""Packages that were written for PyTorch, on gradcore: after :func:`install`, what they import as ``torch`` is gradcore."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import gradcore
from gradcore.devices.storage import Storage
from gradcore.utils.as_torch import devices, dtypes, foreach, library, safetensors
from gradcore.utils.as_torch.internals import CPU, GIVEN, METHODS, TypedStorage, UntypedStorage
from gradcore.utils.as_torch.stand_ins import MODULES, NAMES, UnusedModule, stand_in

__all__ = ["install"]

#: Where packages look for what gradcore has elsewhere, or has another thing by that name.
_OWN: dict[str, Any] = {"cpu": CPU, "library": library, "ops": library.ops}
_SAFETENSORS = "safetensors.torch"


class _Drawing(ModuleType):
    """A module that has the CPU's generator, which takes memory when it is first asked for."""

    @property
    def default_generator(self) -> gradcore.Generator:
        return gradcore.default_generator("cpu")


class _Torch(_Drawing):
    """``torch``: gradcore's names, and those that are only mentioned."""

    def __init__(self, finder: _Finder) -> None:
        super().__init__("torch", gradcore.__doc__)
        self.finder = finder
        vars(self).update((name, value) for name, value in vars(gradcore).items()
                          if name == "__getattr__" or name[:2] != "__")
        self.__spec__ = ModuleSpec("torch", finder, is_package=True)
        self.__path__, self.__file__, self.__version__ = gradcore.__path__, gradcore.__file__, finder.version
        self.device, self.dtype, self.torch = devices.device, dtypes.dtype, self
        vars(self).update(dtypes.ALL | dtypes.FUNCTIONS | foreach.FUNCTIONS | _OWN)


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
            found = sys.modules[module.__name__] = _found(path) if root == "torch" else safetensors
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
        return UnusedModule(f"torch.{path}")


def _add_names() -> None:
    """Add what packages call, and what they only mention, to the modules."""
    for path, names in NAMES.items():
        module = f"torch.{path}".rstrip(".")
        for name in names.split():
            vars(import_module(module)).setdefault(name, stand_in(module, name))
    for path in MODULES:
        # An attribute of the one above, too.
        import_module(f"torch.{path}")
    for path, given in GIVEN.items():
        vars(import_module(f"torch.{path}".rstrip("."))).update(given)


def _add_attributes() -> None:
    """Add to tensors and modules what they have in PyTorch."""
    gradcore.Tensor.dtype = property(lambda self: dtypes.named(self.spec.dtype))  # type: ignore[assignment]
    gradcore.Tensor.untyped_storage = lambda self: UntypedStorage(self.storage)  # type: ignore[attr-defined]
    # In PyTorch ``x.storage`` is a method.
    Storage.__call__ = lambda self: TypedStorage(self)  # type: ignore[assignment, method-assign]
    for name in METHODS:
        setattr(gradcore.Tensor, name, lambda self: self)
    gradcore.Tensor.real = property(lambda self: self)  # type: ignore[attr-defined]
    # Wrappers of an optimizer, which call no ``__init__``, call this for their step's hooks: every step has them.
    gradcore.optim.Optimizer._patch_step_function = lambda self: None  # type: ignore[attr-defined]


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
        sys.modules["gradcore.random"].__class__ = _Drawing
        _add_names()
        _add_attributes()
        if find_spec("safetensors"):
            package: Any = import_module("safetensors")
            package.safe_open = safetensors.opening(package.safe_open)
    elif not isinstance(torch, _Torch):
        raise RuntimeError("as_torch.install() must come before the first import of PyTorch, which has been imported")
    torch.finder.unused.update(unused)

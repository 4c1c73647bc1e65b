"""Packages that were written for PyTorch, on gradcore: after :func:`install`, what they import as ``torch`` is gradcore."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import gradcore

__all__ = ["install"]


class _Finder(MetaPathFinder, Loader):
    """Finds ``torch.nn`` where ``gradcore.nn`` is."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith("torch.") else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import takes what stands here afterwards. It raises ImportError for what gradcore has not got.
        sys.modules[module.__name__] = import_module(f"gradcore.{module.__name__.removeprefix('torch.')}")


def install() -> None:
    """Let ``import torch`` and ``import torch.nn`` give gradcore and ``gradcore.nn``, in what this process imports from now on.

    So a package that was written for PyTorch runs on gradcore, as far as that has what the package uses: its model is measured
    on ``meta``, say, for a GPU that is not there. PyTorch need not be installed. Raises RuntimeError if it has been imported.
    """
    if sys.modules.setdefault("torch", gradcore) is not gradcore:
        raise RuntimeError("as_torch.install() must come before the first import of PyTorch, which has been imported")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())

"""Paths as other systems write them: drives and backslashes, and libraries that are installed elsewhere."""

from __future__ import annotations

import ntpath
import shutil
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from gradcore import reading
from gradcore.engine import sites
from gradcore.events import Site
from gradcore.models import mlp
from gradcore.program.guarding.libraries import is_library


def test_the_package_is_told_by_its_folder_on_windows() -> None:
    package, outside = sites._folders("C:\\lib/gradcore\\engine\\sites.py", ntpath)
    assert "C:\\lib/gradcore\\nn\\linear.py".startswith(package)
    assert not "C:\\lib/gradcore_model.py".startswith(package)
    assert "C:\\lib/gradcore\\models\\mlp.py".startswith(outside) and "C:\\lib/gradcore\\cli\\train.py".startswith(outside)
    assert not "C:\\lib/gradcore\\nn\\linear.py".startswith(outside)


@pytest.mark.parametrize("line, shown", [
    ("C:\\work\\run\\train.py:13 in <module>", "train.py:13 in <module>"),
    ("C:\\work\\run\\parts\\net.py:5", "parts/net.py:5"),
    ("C:\\work\\other.py:5 in f", "C:\\work\\other.py:5 in f"),
    ("D:\\work\\run\\train.py:13", "D:\\work\\run\\train.py:13"),
    ("C:\\Python\\Lib\\site-packages\\timm\\net.py:5 in f", "timm/net.py:5 in f"),
    ("<gradcore>:0 in ", "<gradcore>:0 in "),
])
def test_lines_are_shortened_on_windows(monkeypatch: pytest.MonkeyPatch, line: str, shown: str) -> None:
    monkeypatch.setattr(reading, "os", SimpleNamespace(path=ntpath, sep="\\", getcwd=lambda: "C:\\work\\run"))
    assert reading.short_path(line) == shown


def test_lines_of_the_package_are_shortened_wherever_it_is() -> None:
    assert reading.short_path(f"{mlp.__file__}:30 in MLP.forward") == "gradcore/models/mlp.py:30 in MLP.forward"
    assert reading.below("/home/me", f"{mlp.__file__}:30") == "gradcore/models/mlp.py:30"


@pytest.mark.parametrize("file", ["C:\\work\\train.py", "/home/me/train.py", "train.py"])
def test_the_short_form_of_a_line_has_no_folders(file: str) -> None:
    assert Site(file, 12, "f").short == "train.py:12"


def test_libraries_are_told_wherever_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    is_library.cache_clear()
    assert is_library(np.linalg.__file__) and is_library(ml_dtypes.__file__) and is_library(shutil.__file__)
    assert not is_library(pytest.__file__) and not is_library("/home/me/numpy/train.py")
    monkeypatch.setattr(np, "__file__", "/opt/libraries/numpy/__init__.py")
    is_library.cache_clear()
    assert is_library("/opt/libraries/numpy/linalg/_linalg.py") and not is_library("/opt/libraries/scipy/linalg.py")
    is_library.cache_clear()


def test_what_cupy_finds_its_headers_with_is_a_library() -> None:
    """It looks at files, which a trace that compiles the first kernel would take for the function's own doing."""
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="needs cuda-pathfinder, from the extra [nodriver]")
    assert is_library(pathfinder.load_nvidia_dynamic_lib.__wrapped__.__code__.co_filename)

"""Finds the CUDA sources, and assembles the source of a family of kernels for the compiler."""

from __future__ import annotations

import functools
import re
from pathlib import Path


def source_folder() -> Path:
    """The folder with the .cu files: inside an installed wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "_kernels", package.parent / "kernels"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the CUDA sources are in neither {package / '_kernels'} nor {package.parent / 'kernels'}")


@functools.cache
def source_of(family: str) -> str:
    """One family's source, with each header inserted once in place of its include line.

    CuPy's cache on disk is keyed by the text of the source, so it would not see changes of an included header.
    """
    folder, seen = source_folder(), set()

    def text(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        return re.sub(r'^#include "(\w+\.cuh)"$', lambda line: text(line[1]), (folder / name).read_text(), flags=re.M)

    return text(f"{family}.cu")

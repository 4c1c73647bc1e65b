"""The CUDA sources: where they are, and the source of a family as it is compiled."""

from __future__ import annotations

import functools
import re
from pathlib import Path


def source_folder() -> Path:
    """Where the .cu files are: inside an installed wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_kernels", package.parent / "kernels"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"the CUDA sources are in neither {package / '_kernels'} nor {package.parent / 'kernels'}")


@functools.cache
def source_of(family: str) -> str:
    """One family's source with its headers in place of the lines that include them, each once.

    CuPy's cache on disk knows kernels by their text alone: a header that changed behind an include would go unnoticed.
    """
    folder, seen = source_folder(), set()

    def text(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        return re.sub(r'^#include "(\w+\.cuh)"$', lambda line: text(line[1]), (folder / name).read_text(), flags=re.M)

    return text(f"{family}.cu")

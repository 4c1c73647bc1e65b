"""Names of the cells of a notebook, whose code has the names of files that nobody can open."""

from __future__ import annotations

import sys


def name_of_file(file: str) -> str:
    """The name of the cell, such as ``In[4]``, whose code the notebook that runs this has put in a file; others as they are.

    A cell that has run again unchanged has its last number, which the notebook shows beside it.
    """
    module = sys.modules.get("IPython")
    if module is None:
        return file
    shell = getattr(module, "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", lambda file: None)
    found = name_of(file)
    return file if found is None else str(found[1])

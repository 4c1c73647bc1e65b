"""Runs a command in a process whose CuPy uses the simulated GPU, with kernels computed by the emulator:

    python -m tests.card FOLDER pytest tests/gpu
    python -m tests.card FOLDER gradcore.cli.main train --device cuda
    python -m tests.card FOLDER script.py

Everything between an op and the driver is as on a real GPU: CuPy's arrays, streams, events and graphs, NVRTC's machine code,
modules, launches. Child processes of the command have a simulated GPU too. ``FOLDER`` caches the output of both compilers,
since the first launch of a kernel takes seconds. The exit code is the command's, or 1 for faults that a device would report.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from tests.card.session import start


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # On the path of every interpreter that the command starts.
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(f"from tests.card.session import start\nstart({str(folder)!r})\n")
    os.environ["PYTHONPATH"] = f"{site}{os.pathsep}{Path(__file__).parents[2]}"
    os.environ.setdefault("GRADCORE_STRICT", "1")
    os.environ["GRADCORE_ON_CARD"] = "1"
    session = start(str(folder))
    del sys.argv[:2]
    code: Any = 0
    try:
        if sys.argv[0].endswith(".py"):
            # As Python does, so that modules in the script's folder can be imported.
            sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    sys.exit(code or bool(session.card.faults))


if __name__ == "__main__":
    main()

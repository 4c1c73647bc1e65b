"""Device memory taken by libraries for matrix products: ``python -m bench.gpu.libraries DEVICE SIZE``.

Each route runs in a process of its own, since a handle, a workspace and loaded kernels stay until the process ends. After each
step that may take memory, a line of JSON has the driver's figure for the device, and the bytes in the library pool.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter
from typing import Any

import numpy as np

import gradcore
from bench.gpu.part import Outcome, Setting, python, run_limited

#: By name: the environment variables that choose the route.
ROUTES = {"cuBLASLt, workspace of ours": {"GRADCORE_GEMM": "", "GRADCORE_GEMM_WORKSPACE": ""},
          "cuBLASLt, no workspace": {"GRADCORE_GEMM": "", "GRADCORE_GEMM_WORKSPACE": "0"},
          "cuBLAS by CuPy": {"GRADCORE_GEMM": "cupy", "GRADCORE_GEMM_WORKSPACE": ""}}


def main() -> None:
    """Multiply square matrices on one device, and print the driver's and the pools' figures after each kind of product."""
    device, size = gradcore.device(sys.argv[1]), int(sys.argv[2])
    on: dict[str, Any] = {"device": sys.argv[1]}

    def look(after: str) -> None:
        device.synchronize()
        bridge = getattr(device, "bridge", None)
        line = {"after": after, "free": free_bytes(device), "segments": device.ledger.reserved,
                "library": bridge.ledger.reserved if bridge else 0,
                "undeclared": sum(n for _, n in bridge.seen.values()) if bridge else 0, "unseen": _unseen()}
        print(json.dumps(line), flush=True)

    def linear() -> Any:
        return gradcore.nn.functional.linear(x, x, bias)

    with gradcore.no_grad():
        x = gradcore.rand(size, size, **on)
        half, batch = x.to(dtype=np.float16), gradcore.rand(16, size // 4, size // 4, **on)
        bias = gradcore.zeros(size, **on)
        # Allocate for the results before the first figure is taken.
        made = [gradcore.empty(size, size, **on) for _ in range(3)]
        look("the operands")
        del made
        kinds = {"a product of float32": lambda: x @ x, "of float16": lambda: half @ half, "of a batch": lambda: batch @ batch,
                 "with a bias": linear}
        for name, run in kinds.items():
            run()
            look(name)
        for run in kinds.values():
            for _ in range(100):
                run()
        look("100 more of each")


def free_bytes(device: Any) -> int | None:
    """The driver's free bytes; None without a driver."""
    if device.type != "cuda":
        return None
    from cupy.cuda import runtime

    return int(runtime.memGetInfo()[0])


def _unseen() -> str:
    gemm = sys.modules.get("gradcore.devices.gpu.gemm")
    return gemm.unseen(0) if gemm else ""


def libraries(setting: Setting) -> Outcome:
    """Bytes taken by the first products, by route: from the driver, and of these in the library pool."""
    outcome = Outcome(table=[["route", "after", "driver", "library pool", "segments", "unaccounted", "undeclared"]])
    until = perf_counter() + setting.seconds
    for route, variables in ROUTES.items():
        code, output = run_limited(python("bench.gpu.libraries", setting.device, "32" if setting.rehearsal else "1024"),
                                   max(until - perf_counter(), 1), variables)
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if code != 0 or not lines:
            outcome.problems.append(f"{route}: " + ("no time was left" if code is None else f"code {code}: {output[-1500:]}"))
            continue
        found = differences(lines)
        outcome.figures[route] = found
        outcome.table += [[route, f["after"], *("no driver" if f[k] is None else f"{f[k]:,}" for k in (
            "driver", "library", "segments", "unaccounted"))] + [f"{f['undeclared']:,}"] for f in found]
        if lines[-1]["undeclared"]:
            outcome.problems.append(f"{route}: CuPy allocated {lines[-1]['undeclared']:,} bytes that no op declares")
        outcome.figures[f"{route}: unseen"] = lines[-1]["unseen"]
    outcome.summary = "; ".join(f"{route}: {_short(outcome.figures[route][-1]['unaccounted'])}" for route in ROUTES
                                if route in outcome.figures)
    return outcome


def differences(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Changes since the first line: bytes taken from the driver, those in our pools, and the rest."""
    first, *others = lines
    found = []
    for line in others:
        driver = None if line["free"] is None else first["free"] - line["free"]
        library, segments = (line[k] - first[k] for k in ("library", "segments"))
        found.append({"after": line["after"], "driver": driver, "library": library, "segments": segments,
                      "unaccounted": None if driver is None else driver - library - segments, "undeclared": line["undeclared"]})
    return found


def _short(nbytes: int | None) -> str:
    return "no driver" if nbytes is None else f"{nbytes:,} bytes outside our pools"


if __name__ == "__main__":
    main()

"""Bytes kept for backward, compared with PyTorch: ``python -m bench.peak [--models small large cnn gpt llama encoder mobile
resnet densenet]``.

Ours come from the log: allocated bytes of distinct buffers that nodes keep when backward begins. PyTorch's are counted
through ``torch.autograd.graph.saved_tensors_hooks``: distinct storages, rounded to 512 bytes as its CUDA allocator
rounds them. Parameters and inputs are left out of both.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from bench.timing import one_thread

one_thread()

import gradcore  # noqa: E402
from bench.kept_models import KEPT  # noqa: E402
from bench.workloads import PEAK_BATCHES, WORKLOADS, Workload, loss_of  # noqa: E402
from gradcore.spec import round_up  # noqa: E402

MODELS = WORKLOADS | KEPT


def ours(workload: Workload, device: str = "cpu") -> int:
    """Residual bytes at the start of backward."""
    model = workload.build(gradcore).to(device)
    x, y = workload.arrays()
    with gradcore.step(device=device) as s:
        loss_of(gradcore, model, gradcore.tensor(x, device=device), gradcore.tensor(y, device=device)).backward()
    return s.report.residual_bytes


def theirs(torch: Any, workload: Workload) -> int:
    """Residual bytes in PyTorch."""
    model = workload.build(torch)
    x, y = (torch.from_numpy(a) for a in workload.arrays())
    outside = {t.untyped_storage().data_ptr() for t in (x, y, *model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in outside:
            kept[storage.data_ptr()] = round_up(storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(torch, model, x, y)
    del loss
    return sum(kept.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), default=list(MODELS))
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        torch = None
    rows = {}
    for name in options.models:
        workload = MODELS[name].with_batch(PEAK_BATCHES.get(name, MODELS[name].batch))
        mine, meta = ours(workload), ours(workload, "meta")
        assert mine == meta, (mine, meta)
        other = theirs(torch, workload) if torch is not None else None
        rows[name] = {"gradcore": mine, "torch": other}
        if not options.json:
            beside = "torch is not installed" if other is None else f"torch keeps {other:,}, ratio {mine / other:.3f}"
            print(f"{name:7} {workload.about}, batch {workload.batch}: gradcore keeps {mine:,} bytes; "
                  f"{beside}")
    if options.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()

"""What the models of the benchmarks keep for backward: never more bytes than PyTorch."""

from __future__ import annotations

import pytest

from bench.peak import MODELS, ours, theirs
from bench.workloads import PEAK_BATCHES, WORKLOADS
from tests.conftest import torch_or_skip

#: Bytes that PyTorch keeps, in distinct storages besides parameters and inputs, by model, and the share that is kept here.
PYTORCHS = {"small": (68_608, 1), "large": (6_312_448, 1), "cnn": (111_224_320, 0.487), "gpt": (313_492_992, 0.629),
            "llama": (95_490_560, 0.561), "encoder": (206_537_216, 0.229), "mobile": (511_863_808, 0.329),
            "resnet": (49_839_104, 0.59), "densenet": (394_774_528, 0.239)}


@pytest.mark.parametrize("name", list(MODELS))
def test_no_more_is_kept_than_by_pytorch(name: str) -> None:
    workload = MODELS[name].with_batch(PEAK_BATCHES.get(name, MODELS[name].batch))
    nbytes, share = PYTORCHS[name]
    assert 0 < ours(workload, "meta") <= nbytes * share


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["small", "large"])
def test_pytorchs_bytes_are_as_counted_here(name: str) -> None:
    assert theirs(torch_or_skip(), WORKLOADS[name]) == PYTORCHS[name][0]
    assert ours(WORKLOADS[name]) == ours(WORKLOADS[name], "meta")

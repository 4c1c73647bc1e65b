"""What the models of the benchmarks keep for backward: never more bytes than PyTorch."""

from __future__ import annotations

import pytest

from bench.peak import ours, theirs
from bench.workloads import PEAK_BATCHES, WORKLOADS
from tests.conftest import torch_or_skip

#: Bytes that PyTorch keeps, in distinct storages besides parameters and inputs, by model.
PYTORCHS = {"small": 68_608, "large": 6_312_448, "cnn": 111_224_320, "gpt": 313_492_992}


@pytest.mark.parametrize("name", list(PYTORCHS))
def test_no_more_is_kept_than_by_pytorch(name: str) -> None:
    workload = WORKLOADS[name].with_batch(PEAK_BATCHES.get(name, WORKLOADS[name].batch))
    assert 0 < ours(workload, "meta") <= PYTORCHS[name]


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["small", "large"])
def test_pytorchs_bytes_are_as_counted_here(name: str) -> None:
    assert theirs(torch_or_skip(), WORKLOADS[name]) == PYTORCHS[name]
    assert ours(WORKLOADS[name]) == ours(WORKLOADS[name], "meta")

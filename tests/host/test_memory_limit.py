"""Valid and invalid limits of a device's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.devices.meta import make_meta
from gradcore.units import parse_limit
from tests.conftest import raises


@pytest.mark.parametrize(("given", "nbytes"), [(None, None), (1, 1), ("64MiB", 64 << 20), ("1.5 GB", 1_500_000_000),
                                              (np.int64(4096), 4096)])
def test_limits_are_read(given: Any, nbytes: int | None) -> None:
    assert parse_limit(given) == nbytes


@pytest.mark.parametrize("given", [1.5, 4096.0, 0, "0", "0.4 B", -1, True, "", "much", (1,)])
def test_what_is_no_limit_is_one_clear_error(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = " must be a size of at least 1 byte, such as '64MiB' or 4096, or {} for no limit, but got {!r}"
    with raises(ValueError, "the memory limit" + expected.format("None", given)):
        gradcore.set_memory_limit(given)
    if given and isinstance(given, str):
        monkeypatch.setenv("GRADCORE_MEMORY_LIMIT", given)
        with raises(ValueError, "GRADCORE_MEMORY_LIMIT" + expected.format("empty", given)):
            make_meta()


def test_an_empty_limit_in_the_environment_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCORE_MEMORY_LIMIT", "")
    assert make_meta().stack.limit.limit is None


def test_what_a_larger_step_left_cached_does_not_serve_past_a_lower_limit() -> None:
    gradcore.empty_cache("meta")
    live = gradcore.ones(1000, device="meta")
    reserved = gradcore.memory_reserved("meta")
    gradcore.ones(100 << 20, device="meta")
    assert gradcore.memory_reserved("meta") > 400 << 20, "cached"
    gradcore.set_memory_limit("64MiB", "meta")
    try:
        assert gradcore.memory_reserved("meta") == reserved
        with pytest.raises(gradcore.OutOfMemory):
            gradcore.ones(100 << 20, device="meta")
        # One that what is reserved keeps to returns nothing.
        gradcore.set_memory_limit(reserved, "meta")
        assert gradcore.memory_reserved("meta") == reserved and live.numel() == 1000
    finally:
        gradcore.set_memory_limit(None, "meta")

"""Valid and invalid limits of a device's memory."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.devices.host.device import make_host
from gradcore.devices.meta import make_meta
from gradcore.memory.stack import explain_live
from gradcore.units import parse_limit, switch_from
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


def test_a_switch_in_the_environment_is_on_off_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, on in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv("GRADCORE_POISON", value)
        assert switch_from("GRADCORE_POISON") is on
    monkeypatch.setenv("GRADCORE_POISON", "true")
    with raises(ValueError, "GRADCORE_POISON must be 1, or 0 or empty for off, but got 'true'"):
        make_host()


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


def test_an_error_in_backward_says_the_line_of_forward_and_that_of_its_caller() -> None:
    """As plain values: a kept error keeps no tensor, and a copy for another process says the same."""
    device = make_meta()
    x = gradcore.ones(1 << 24, device=device, requires_grad=True)
    seed = gradcore.ones((), device=device).expand(1 << 24)
    y = x.tanh()
    device.stack.limit.limit = device.ledger.reserved
    with pytest.raises(gradcore.OutOfMemory) as caught:
        y.exp()
    first = caught.value
    assert (first.op, first.phase, first.caller_file, first.caller_line) == ("exp", "setup", "", 0)
    with pytest.raises(gradcore.OutOfMemory) as caught:
        y.backward(seed)
    error = caught.value
    here = error.__traceback__
    assert here is not None
    assert (error.op, error.layer, error.phase, error.file) == ("tanh_grad", "", "backward", __file__)
    assert (error.line, error.caller_file, error.caller_line) == (here.tb_lineno - 7, __file__, here.tb_lineno)
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)
    assert all(value is None or type(value) in (int, str) for value in vars(error).values())
    del here, caught


def test_what_autocast_has_cast_is_said_to_be_held_by_it() -> None:
    device = make_meta()
    layer = gradcore.nn.Linear(1000, 1000, device=device)
    with gradcore.autocast("meta", dtype=gradcore.float16):
        layer(gradcore.ones(1, 1000, device=device))
        text = "\n".join(explain_live(device.ledger))
    cast, held = text.split("\n")[3:5]
    assert "output of cast in layer (root), " in cast and held == f"{'':25}held by autocast until its region ends"


def test_what_only_a_backward_holds_is_said_to_be_held_by_that() -> None:
    """The loss has no name in the program, nor have the gradients on their way; gradcore's own names say nothing to it."""
    device = make_meta()
    x = gradcore.ones(1 << 24, device=device, requires_grad=True)

    def loss() -> Any:
        return x.tanh().tanh().softmax(0).sum()

    for create_graph in (False, True):
        loss()
        device.stack.limit.limit = device.ledger.reserved
        with pytest.raises(gradcore.OutOfMemory) as caught:
            loss().backward(create_graph=create_graph)
        text = str(caught.value)
        assert "residual of tanh in layer (root), " in text
        assert "held by the backward that runs" in text and "gradcore.engine" not in text
        del caught
        device.stack.limit.limit = None

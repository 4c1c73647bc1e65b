"""Results that take the place of operands: what is read for the last time need not be kept beside what is made of it."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

from gradcore.devices.device import Device
from gradcore.engine.plans import Call
from gradcore.engine.state import State
from gradcore.engine.tracer import tracer_of
from gradcore.events import Tag


def take_over(state: State, call: Call, device: Device, args: tuple[Any, ...], tag: Tag, number: int) -> Any:
    """The operand whose bytes are the output's from now on: it is read for the last time, the op may write its output over it,
    and nothing else refers to it. None if there is none.
    """
    last, state.spending = state.spending, None
    log = device.ledger.log
    if last is None or (log is not None and (tracer := tracer_of(log)) is not None and tracer.rereads):
        # None if a signal's handler has run an op meanwhile.
        return None
    cotangents, residuals, node = last
    for i in call.over:
        x = args[i]
        kept = id(x) in map(id, residuals)
        # References to its storage are those of x, of the argument and, if it is a residual, of its node.
        if getrefcount(x.storage) > (3 if kept and node is not None else 2) or not (kept or id(x) in map(id, cotangents)):
            continue
        block = x.storage.block
        # In pinned memory nothing is computed; of another library's, nothing was requested; and users are other streams.
        if x.storage.device is not device or block.requested != call.specs[0].nbytes or block.users is not None:
            continue
        if getrefcount(x.storage) > 2:
            node.saved = node.recipe = None
        if getrefcount(x.storage) == 2:
            device.ledger.pass_on(block, tag, number)
            x.storage.version = 0
            x.storage.views = None
            return x
    return None

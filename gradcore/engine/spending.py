"""Results that take the place of operands: what is read for the last time need not be kept beside what is made of it."""

from __future__ import annotations

from typing import Any

from gradcore.devices.device import Device
from gradcore.devices.storage import Storage
from gradcore.engine.plans import Call
from gradcore.engine.state import State
from gradcore.engine.tracer import tracer_of
from gradcore.engine.value import unseen
from gradcore.events import Tag


def place_of_spent(state: State, call: Call, device: Device, args: tuple[Any, ...], tag: Tag, number: int) -> Storage | None:
    """The storage of an operand, whose bytes are the output's from now on: it is read for the last time, the op may write its
    output over it, and nothing else refers to it. None if there is none.
    """
    last, state.spending = state.spending, ()
    log = device.ledger.log
    if log is not None and (tracer := tracer_of(log)) is not None and tracer.rereads:
        return None
    for i in call.over:
        x = args[i]
        # In pinned memory nothing is computed; of another library's, nothing was requested; and users are other streams.
        if unseen(x) and id(x) in last:
            storage: Storage = x.storage
            block = storage.block
            if storage.device is device and block.requested == call.specs[0].nbytes and block.users is None:
                device.ledger.pass_on(block, tag, number)
                storage.version = 0
                storage.views = None
                return storage
    return None

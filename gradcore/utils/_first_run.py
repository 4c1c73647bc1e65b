"""What the first run of a checkpoint was made in: its layer, line and modes, and the random numbers that it drew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradcore._random import Generator, Place, default_generator, default_generators
from gradcore.devices.device import Device, device_of_new
from gradcore.engine.autocast import resumed
from gradcore.engine.modes import enable_grad, no_grad
from gradcore.engine.sites import called_at, here
from gradcore.engine.state import local
from gradcore.engine.value import tensors_in
from gradcore.nn import paths

Tensor = Any

#: The default generators with their places: orders are drawn on the host, from whichever generator.
Places = list[tuple[Generator, Place]]


def _drawing(states: list[Tensor], places: Places, run: Callable[[], Any]) -> Any:
    """``run()`` with generators that start from ``states`` and ``places``; their present states are restored afterwards."""
    generators = [default_generator(state.storage.device) for state in states]
    present = [(generator, generator.place) for generator, _ in places]
    with no_grad():
        now = [generator.device_state() for generator in generators]
    try:
        _draw_from(generators, states, places)
        return run()
    finally:
        _draw_from(generators, now, present)


@no_grad()
def _draw_from(generators: list[Generator], states: list[Tensor], places: Places) -> None:
    for generator, place in places:
        generator.place = place
    for generator, state in zip(generators, states, strict=True):
        generator.put_back(state, generator.place)


class FirstRun:
    """The layer, line, autocast mode and mode ``recompute`` of the first run, which the second run restores."""

    def __init__(self) -> None:
        self.site = here()
        self.tree = paths.calls.tree
        self.scope = local.state.scope
        self.autocast = local.state.autocast
        self.recompute = local.state.recompute
        self.places: Places = []

    def draws(self, args: Sequence[Any]) -> list[Tensor]:
        """The states of the default generators of the devices in use, to be given to :meth:`again`."""
        self.places = [(generator, generator.place) for generator in default_generators()]
        # What has no tensor among its arguments refers to some.
        devices: set[Device] = {t.storage.device for t in tensors_in(args)} or {device_of_new(None)}
        with no_grad():
            return [default_generator(d).device_state() for d in sorted(devices, key=lambda d: d.name)]

    def again(self, states: list[Tensor], run: Callable[[], Any]) -> Any:
        """``run()`` there, with generators that start from ``states``, if these were noted.

        A context manager is not safe here: where an interrupt keeps it from ending, nothing else restores all of this.
        """
        state = local.state
        before = (paths.calls.tree, state.scope, state.site, state.recompute)
        now = state.scope.plain
        try:
            paths.calls.tree, state.scope, state.site = self.tree, self.scope.at(now.phase, now.caller), None
            state.recompute = self.recompute
            with resumed(self.autocast), enable_grad():
                return _drawing(states, self.places, lambda: called_at(self.site)(run))
        finally:
            paths.calls.tree, state.scope, state.site, state.recompute = before

"""Looks at the program's objects for a step's report: not too often, as they take long, and a loop may report each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import perf_counter

from gradcore._holders import holders_of, live_nodes
from gradcore.devices.device import Device
from gradcore.report.growth import Carried, Growth
from gradcore.report.trend import TURNS, growth_of_nodes

#: By device: what was said of the holders of buffers, by serial, and until when it is said again.
_told: dict[str, tuple[float, dict[int, str]]] = {}
#: By device: until when what was found of its graph is said again, the last node that it was said of, and what.
_graphs: dict[str, tuple[float, int, Growth | None]] = {}
#: By device: until when what was said of tensors that steps may continue from is said again, and what.
_links: dict[str, tuple[float, dict[Carried, bool]]] = {}


def _rested(began: float) -> float:
    """Until when what began then, and ends now, is not done again, so that it takes a twentieth of the time at most."""
    return began + 21 * (perf_counter() - began)


def who(device: Device, serials: Iterable[int]) -> dict[int, str]:
    """What :func:`~gradcore._holders.holders_of` says of buffers; soon after it was asked for the same ones, what it said then.

    To look for holders takes longer than most steps, and a loop may ask for the report of each. So it takes a twentieth of the
    time at most as long as the same buffers are the oldest ones of their lines.
    """
    wanted, began = set(serials), perf_counter()
    until, told = _told.get(device.name, (0.0, {}))
    if began > until or not wanted <= told.keys():
        told = {**dict.fromkeys(wanted, ""), **holders_of(device.ledger, wanted)}
        _told[device.name] = _rested(began), told
    return {serial: told[serial] for serial in wanted if told[serial]}


def linked(device: Device, before: int, carried: Mapping[Carried, Iterable[int]]) -> set[Carried]:
    """As :data:`~gradcore.report.growth.Linked`, of a step before which the last node had the number ``before``; soon after it
    was asked for the same ones, what was said then.
    """
    began = perf_counter()
    until, told = _links.get(device.name, (0.0, {}))
    if began > until or not carried.keys() <= told.keys():
        continuing = {number for number, oldest in live_nodes() if oldest <= before}
        told = {c: not continuing.isdisjoint(nodes) for c, nodes in carried.items()}
        _links[device.name] = _rested(began), told
    return {c for c in carried if told[c]}


def grown_graph(device: Device, built: list[int]) -> Growth | None:
    """How the graph has grown over the steps that ended with these numbers of nodes; within a twentieth of the time, too."""
    if len(built) < TURNS + 2:
        return None
    began = perf_counter()
    until, then, found = _graphs.get(device.name, (0.0, 0, None))
    # What was found of other steps says nothing of these.
    if began > until or then not in built:
        found = growth_of_nodes(built, live_nodes())
        until = _rested(began)
    elif found is not None:
        found = replace(found, steps=found.steps + len({number for number in built if number > then}))
    # Of the last step, so that it is said again for as long as reports are asked for.
    _graphs[device.name] = until, built[-1], found
    return found

"""A log as people read it: in named records, with the layers of several networks told apart, and with short paths."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from gradcore.cells import name_of_file
from gradcore.events import ALLOC, KEEP, RESERVE, RETAG, TAG_AT, Network, Raw, Record, Scope, Site, Tag, typed


def read_log(log: Iterable[Raw]) -> list[Record]:
    """A log as named records. If it has several networks, the path of each layer begins with its network's name."""
    log = _gradients_from_the_start(_as_known_later(list(log)))
    # By id, since a tag takes long to hash. The log keeps them alive.
    tags = {id(tag): tag for tag in [raw[TAG_AT[raw[0]]] for raw in log if raw[0] in TAG_AT]}
    names = network_names(tag.network for tag in tags.values())
    shown = {key: tag if tag.network is None else tag._replace(layer=layer_in(tag, names), network=None)
             for key, tag in tags.items()}
    return [typed(raw, shown) for raw in log]


def _as_known_later(log: list[Raw]) -> list[Raw]:
    """The log with the layers of what was live when it began as they are in the network that names them during the log.

    A part that was called alone before, such as for the size of its output, is no network of its own within the whole; nor does
    a whole exist any more that a part has outlived.
    """
    later: dict[int, Tag] = {raw[1]: raw[2] for raw in log if raw[0] == RETAG}
    opening = [i for i, raw in enumerate(itertools.takewhile(lambda raw: raw[0] in (RESERVE, ALLOC, KEEP), log))
               if raw[0] == ALLOC and raw[7].network is not None]
    # By layer: a gradient, for one, is often freed before the first call names its parameter.
    known: dict[tuple[Network | None, str], set[tuple[Network | None, str]]] = {}
    for i in opening:
        tag: Tag = log[i][7]
        if tag.role in ("parameter", "buffer"):
            now = later.get(log[i][1], tag)
            known.setdefault((tag.network, tag.layer), set()).add((now.network, now.layer))
    for i in opening:
        tag = log[i][7]
        found = known.get((tag.network, tag.layer), set())
        # A parameter that is shared with another network takes no other one with it.
        if len(found) == 1:
            (network, layer), = found
            log[i] = (*log[i][:7], tag._replace(layer=layer, network=network), *log[i][8:])
    return log


def _gradients_from_the_start(log: list[Raw]) -> list[Raw]:
    """The log with each gradient that backward delivers as one from its allocation on.

    It becomes the parameter's only when its op has run. So the last one of a backward, which often is at the peak, would be a
    temporary there, and count among the bytes of the samples.
    """
    made: dict[int, int] = {}
    for i, raw in enumerate(log):
        if raw[0] == ALLOC:
            if raw[7].role == "temporary":
                made[raw[1]] = i
        elif raw[0] == RETAG and raw[1] in made and raw[2].role == "gradient":
            at = made.pop(raw[1])
            log[at] = (*log[at][:7], raw[2], *log[at][8:])
    return log


def network_names(networks: Iterable[Network | None]) -> dict[Network, str]:
    """A name for each network, from its class; none if there is only one network."""
    found = sorted({n for n in networks if n is not None}, key=lambda n: n.number)
    if len(found) < 2:
        return {}
    alike = {n: [m for m in found if m.kind == n.kind] for n in found}
    return {n: n.kind if len(alike[n]) == 1 else f"{n.kind}#{alike[n].index(n) + 1}" for n in found}


def layer_in(where: Tag | Scope, names: Mapping[Network, str]) -> str:
    """The layer of a tag or scope, preceded by the name of its network if that has one."""
    name = None if where.network is None else names.get(where.network)
    return where.layer if name is None else f"{name}.{where.layer}" if where.layer else name


def owner_in(tag: Tag, names: Mapping[Network, str]) -> dict[str, Any]:
    """What an :class:`~gradcore.errors.OutOfMemory` says about the owner of the bytes that it could not allocate."""
    layer, caller = layer_in(tag, names), tag.caller or Site("", 0, "")
    return {"by": f"{tag.op} in layer {layer or '(root)'}, {tag.phase}, {short_path(str(tag.site))}", "op": tag.op,
            "layer": layer, "phase": tag.phase, "file": name_of_file(tag.site.file), "line": tag.site.line,
            "caller_file": name_of_file(caller.file), "caller_line": caller.line}


def working_directory() -> str | None:
    """The path of the working directory; None if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def short_path(line: str) -> str:
    """A line of source, with its path relative to the working directory if it is below that."""
    here = working_directory()
    return line if here is None else _below_here(here, line)


def below(root: str | os.PathLike[str], line: str) -> str:
    """A line of source, with its path relative to ``root`` if it is below that, and with slashes on every system.

    That of an installed package begins with the package, so that it is the same in every environment, and so does one of
    gradcore itself, also where it is installed from a checkout.
    """
    drive, tail = os.path.splitdrive(line)
    path, colon, rest = tail.partition(":")
    if not os.path.isabs(drive + path):
        return line
    installed = re.match(r".*[/\\](?:site|dist)-packages[/\\]", drive + path)
    if (drive + path).startswith(_OWN):
        root = os.path.dirname(os.path.dirname(_OWN))
    try:
        relative = os.path.relpath(drive + path, installed[0] if installed else root)
    except ValueError:
        # On another drive.
        return line
    return line if relative.startswith("..") else relative.replace(os.sep, "/") + colon + rest


#: The folder of gradcore.
_OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
#: Reports say the same lines again and again.
_below_here = functools.lru_cache(1024)(below)

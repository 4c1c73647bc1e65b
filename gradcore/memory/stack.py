"""Assembly of the memory stack: [Poison] -> Ledger -> Pool -> Limit -> Source.

Poison, for tests, is outermost: there it sees every allocation, and costs nothing when absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from gradcore.errors import OutOfMemory
from gradcore.events import Network
from gradcore.folds import role_of
from gradcore.grouping import Buffer, largest
from gradcore.memory.adaptors import Limit, Poison
from gradcore.memory.arena import in_arenas
from gradcore.memory.ledger import Ledger
from gradcore.memory.pool import Pool
from gradcore.memory.resource import Block, Driver, MemoryResource, Source
from gradcore.memory.streams import StreamOrder
from gradcore.reading import layer_in, network_names, short_path
from gradcore.units import format_bytes


@dataclass(frozen=True)
class Stack:
    """A device's memory: ``top``, which callers allocate from, and the layers that have figures or settings."""

    top: MemoryResource
    ledger: Ledger
    pool: Pool
    limit: Limit
    driver: Driver


def build(source: Source, driver: Driver, *, limit: int | None = None,
          poison: Callable[[Block], None] | None = None) -> Stack:
    """A stack over ``source`` that reserves at most ``limit`` bytes; ``poison`` fills the bytes of a block."""
    limited = Limit(source, limit)
    pool = Pool(limited, StreamOrder(driver))
    ledger = Ledger(pool, explain)
    top: MemoryResource = ledger if poison is None else Poison(ledger, poison)
    return Stack(top, ledger, pool, limited, driver)


#: The most holders that are listed.
_HOLDERS = 10
_namer: Callable[[Ledger, Iterable[int]], Mapping[int, str]] | None = None


def install_namer(namer: Callable[[Ledger, Iterable[int]], Mapping[int, str]]) -> None:
    """Set what tells, by serial of a ledger's buffers, what in the program holds them."""
    global _namer
    _namer = namer


@contextmanager
def unnamed() -> Iterator[None]:
    """A context in which that is not asked, since many an error is expected that nobody reads."""
    global _namer
    before, _namer = _namer, None
    try:
        yield
    finally:
        _namer = before


def explain_live(ledger: Ledger, named: bool = True) -> list[str]:
    """Lines that name the largest holders of a device's memory, ten at most, as in :func:`~gradcore.grouping.largest`; if
    ``named``, with what in the program holds them."""
    live = ledger.live.values()
    if not live:
        return ["Nothing is live."]
    networks = network_names(block.tag.network for block in live)
    who = partial(_namer, ledger) if named and _namer is not None else None
    count, lines = largest((_said(block, networks) for block in live), _HOLDERS, who)
    return [f"The {count} largest holders:" if count > 1 else "The largest holder:", *lines]


def _size(nbytes: int, unit: str = "") -> str:
    """``40,000,000 (38.1 MiB)``: of many digits, also what the size of a card is given in."""
    return f"{nbytes:,}{unit}" + f" ({format_bytes(nbytes)})" * (nbytes >= 100_000)


def _said(block: Block, networks: Mapping[Network, str]) -> Buffer:
    tag, role = block.tag, role_of(block.tag, bool(block.keeps))
    where = short_path(str(tag.site))
    if tag.export:
        where += f", shared by {tag.export.form}, {short_path(str(tag.export.site))}"
    return layer_in(tag, networks), f"{role} of {tag.op} in layer", where, block.size, block.serial


def explain(ledger: Ledger, error: OutOfMemory) -> str:
    """The text of an out-of-memory error: what was asked for, what there is, and who holds it."""
    limit = "none" if error.limit is None else _size(error.limit)
    outside = "" if error.outside is None else f", {error.outside:,} in use on the device outside the pool"
    held = in_arenas(ledger)
    arenas = f", {held:,} more in arenas of compiled functions" if held else ""
    try:
        live = explain_live(ledger)
    except Exception:
        # The search meets any object of the program, and there may be little memory on the host. The error is what matters.
        live = explain_live(ledger, named=False)
    return "\n".join([
        f"out of memory: cannot allocate {_size(error.asked, ' bytes')} for {error.by}; {_size(error.live)} are live, "
        f"{_size(error.cached)} cached (largest free block {error.largest_free:,}){arenas}, limit {limit}{outside}; "
        f"{error}", *live])

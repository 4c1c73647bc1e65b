"""Assembly of the memory stack: [Poison] -> Ledger -> Pool -> Limit -> Source.

Poison, for tests, is outermost: there it sees every allocation, and costs nothing when absent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gradcore.errors import OutOfMemory
from gradcore.events import TAGS
from gradcore.folds import role_of
from gradcore.memory.adaptors import Limit, Poison
from gradcore.memory.ledger import Ledger
from gradcore.memory.pool import Pool
from gradcore.memory.resource import Block, Driver, MemoryResource, Source
from gradcore.memory.streams import StreamOrder
from gradcore.reading import layer_in, network_names


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


def explain_live(ledger: Ledger, who: Callable[[Iterable[int]], Mapping[int, str]] | None = None) -> list[str]:
    """Lines that name the largest holders of a device's memory, ten at most.

    ``who`` tells by serial what in the program holds the buffers; that of each line's first one is said.
    """
    held: Counter[str] = Counter()
    first: dict[str, int] = {}
    live = ledger.live.values()
    networks = network_names(TAGS[block.tag].network for block in live)
    for block in live:
        tag = TAGS[block.tag]
        shown = f", shared by {tag.export.form}, {tag.export.site}" if tag.export else ""
        layer = layer_in(tag, networks) or "(root)"
        line = f"{role_of(tag, bool(block.keeps))} of {tag.op} in layer {layer}, {tag.site}{shown}"
        held[line] += block.size
        first[line] = min(block.serial, first.get(line, block.serial))
    largest = held.most_common(10)
    if not largest:
        return ["Nothing is live."]
    names = {} if who is None else who([first[line] for line, _ in largest])
    lines = [f"The {len(largest)} largest holders:"]
    for line, nbytes in largest:
        lines.append(f"  {nbytes:>15,} bytes  {line}")
        if first[line] in names:
            lines.append(f"{'':25}held by {names[first[line]]}")
    return lines


def explain(ledger: Ledger, error: OutOfMemory) -> str:
    """The text of an out-of-memory error: what was asked for, what there is, and who holds it."""
    limit = "none" if error.limit is None else f"{error.limit:,}"
    return "\n".join([
        f"out of memory: cannot allocate {error.asked:,} bytes for {error.by}; {error.live:,} are live, {error.cached:,} "
        f"cached (largest free block {error.largest_free:,}), limit {limit}. {error}", *explain_live(ledger)])

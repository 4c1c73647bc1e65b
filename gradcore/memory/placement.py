"""Where blocks lie: how large their segments are, and which free memory is kept in one piece for others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from gradcore.events import TAGS
from gradcore.memory.resource import LARGE_BLOCKS, STATE_BLOCKS
from gradcore.spec import round_up

MiB = 1 << 20
#: Bytes. Requests up to SMALL share segments of SMALL_SEGMENT; those below MIDDLE, segments of MIDDLE_SEGMENT; larger ones get
#: a segment of their own, rounded up to a multiple of SMALL_SEGMENT. Long-lived small tensors so never pin a large segment.
#: Optimizer state larger than SMALL has segments for itself, of which at most an eighth is left over.
SMALL, SMALL_SEGMENT, MIDDLE, MIDDLE_SEGMENT = MiB, 2 * MiB, 10 * MiB, 20 * MiB

#: Segments of at least so many bytes are kept for blocks of a similar size.
WHOLE = 64 * MiB

#: Will the block with this tag that is being allocated outlive the backward that runs?
_outlives: Callable[[int], bool] = lambda tag: False


def install_outlives(outlives: Callable[[int], bool]) -> None:
    """Tell the pool what the engine above it knows of the gradients that it allocates."""
    global _outlives
    _outlives = outlives


def segment_size(size: int, kind: int = LARGE_BLOCKS) -> int:
    """Bytes of the segment that a block of ``size`` bytes is cut from."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if kind == STATE_BLOCKS:
        # Layers repeat, so more of this size will come: as few as leave little over.
        return next(n for n in (round_up(k * size, SMALL_SEGMENT) for k in count(1)) if 8 * (n % size) <= n)
    if size < MIDDLE:
        return MIDDLE_SEGMENT
    return round_up(size, SMALL_SEGMENT)


def choices(size: int, tag: int) -> tuple[Callable[[int, int], bool] | None, ...]:
    """May a large block be cut from a segment of so many bytes, of which so many are free in one piece? The first choice, and
    what follows if nothing suits; None for any segment.

    A forward makes the largest tensors of a network while gradients live, unless these are cleared before it. It finds room for
    them in one piece if no gradient lies in a segment of ten times its size or more, and nothing that a forward makes in one of
    these that is wholly free. What backward makes and drops takes those first, and leaves the others to gradients.
    """
    # The scores of a language model are ten times as large as what leads to them. A convolutional network's tensors shrink to a
    # half or an eighth from stage to stage, and may share a segment.
    least, phase = max(10 * size, WHOLE), TAGS[tag].phase
    if _outlives(tag):
        return (lambda segment, free: segment < least),
    if phase == "forward":
        return (lambda segment, free: segment < least or free < segment),
    return ((lambda segment, free: segment >= least), None) if phase == "backward" else (None,)

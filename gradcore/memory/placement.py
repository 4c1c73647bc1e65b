"""Where blocks lie: how large their segments are, and which free memory is kept in one piece for others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from gradcore.events import Tag
from gradcore.memory.resource import LARGE_BLOCKS, STATE_BLOCKS, Segment
from gradcore.spec import round_up

MiB = 1 << 20
#: Bytes. Requests up to SMALL share segments of SMALL_SEGMENT; those below MIDDLE, segments of MIDDLE_SEGMENT; larger ones get
#: a segment of their own, rounded up to a multiple of SMALL_SEGMENT. Long-lived small tensors so never pin a large segment.
#: Optimizer state larger than SMALL has segments for itself, of which at most an eighth is left over.
SMALL, SMALL_SEGMENT, MIDDLE, MIDDLE_SEGMENT = MiB, 2 * MiB, 10 * MiB, 20 * MiB

#: Segments of at least so many bytes are kept for blocks of a similar size.
WHOLE = 64 * MiB

#: Will the block with this tag that is being allocated outlive the backward that runs?
_outlives: Callable[[Tag], bool] = lambda tag: False


def install_outlives(outlives: Callable[[Tag], bool]) -> None:
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


def choices(size: int, tag: Tag) -> tuple[Callable[[Segment, int], bool] | None, ...]:
    """May a large block be cut from this segment, of which so many bytes are free in one piece? The first choice, and what
    follows if nothing suits; None for any segment.

    A forward makes the largest tensors of a network while gradients live, unless these are cleared before it. It finds room for
    them in one piece if no gradient lies in a segment of ten times its size or more, and nothing that a forward makes in one of
    these that is wholly free. What backward makes and drops takes what is left of those in use first, and leaves the others to
    gradients.
    """
    # The scores of a language model are ten times as large as what leads to them. A convolutional network's tensors shrink to a
    # half or an eighth from stage to stage, and may share a segment.
    least, phase = max(10 * size, WHOLE), tag.phase
    if _outlives(tag):
        return (lambda segment, free: segment.nbytes < least),
    if phase == "forward":
        return (lambda segment, free: segment.nbytes < least or free < segment.nbytes),
    return ((lambda segment, free: segment.nbytes >= least and free < segment.nbytes), None) if phase == "backward" else (None,)


def last_choice(size: int, tag: Tag, largest: int) -> Callable[[Segment, int], bool]:
    """The same when the source has no more: what was kept in one piece for others is cut, but not the ``largest``.

    Of a segment that replaced others, as much as these had is cut in any case, but not for gradients.
    """
    if _outlives(tag):
        return lambda segment, free: free < largest and not segment.in_turn
    return lambda segment, free: free < largest or segment.nbytes - free + size <= segment.in_turn


def bytes_in_turn(nbytes: int, given_back: int, others: int) -> int:
    """The bytes of a new segment of ``nbytes`` that may serve what the segments did that were given back for it.

    They were free when it was needed, so it will be free when they are. Of bytes that are few beside it, and beside the others
    that stayed, that says little: in the next step different ones may be free.
    """
    return given_back if 2 * given_back >= min(nbytes, others) else 0

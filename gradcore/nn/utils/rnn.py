"""Sequences of different lengths in one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcore import functional
from gradcore.errors import SpecError
from gradcore.nn import functional as F

__all__ = ["pad_sequence", "unpad_sequence"]

Tensor = Any


def pad_sequence(sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0,
                 padding_side: str = "right") -> Tensor:
    """Sequences [length, ...] as [longest, N, ...], or [N, longest, ...] with ``batch_first``, the rest ``padding_value``.

    Raises RuntimeError for no sequences, ValueError for a side that is neither "right" nor "left", :class:`SpecError` for
    trailing sizes that differ.
    """
    if not sequences:
        raise RuntimeError("received an empty list of sequences")
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side should be either 'right' or 'left', but got {padding_side}")
    tails = {tuple(s.spec.shape[1:]) for s in sequences}
    if len(tails) > 1 or not sequences[0].spec.ndim:
        raise SpecError(f"pad_sequence expects sequences [length, ...] of the same trailing sizes, but got "
                        f"{[list(s.spec.shape) for s in sequences]}")
    longest = max(s.spec.shape[0] for s in sequences)
    padded = []
    for s in sequences:
        missing = longest - s.spec.shape[0]
        sides = [0, 0] * (s.spec.ndim - 1) + ([missing, 0] if padding_side == "left" else [0, missing])
        padded.append(F.pad(s, sides, "constant", padding_value) if missing else s)
    return functional.stack(padded, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """The sequences that :func:`pad_sequence` put together, of these lengths: views."""
    rows = padded_sequences if batch_first else functional.transpose(padded_sequences, 0, 1)
    sizes = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    return [functional.narrow(row, 0, 0, int(n)) for row, n in zip(functional.unbind(rows), sizes, strict=True)]

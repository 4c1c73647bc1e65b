"""Batches of sequences of different lengths: padded, and packed without padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from gradcore import functional
from gradcore.engine.sites import need_values
from gradcore.engine.value import Value
from gradcore.errors import SpecError
from gradcore.functional import folding
from gradcore.nn import functional as F
from gradcore.ops import movement, placing

__all__ = ["PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence",
           "pad_sequence", "unpack_sequence", "unpad_sequence"]

Tensor = Any


def pad_sequence(sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0,
                 padding_side: str = "right") -> Tensor:
    """Sequences [length, ...] padded to [longest, N, ...], or [N, longest, ...] with ``batch_first``, in the first one's dtype.

    Raises RuntimeError for no sequences, ValueError for a side other than "right" and "left", :class:`SpecError` if trailing
    sizes differ.
    """
    if isinstance(sequences, Value):
        sequences = functional.unbind(sequences)
    if not sequences:
        raise RuntimeError("received an empty list of sequences")
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side should be either 'right' or 'left', but got {padding_side}")
    tails = {tuple(s.spec.shape[1:]) for s in sequences}
    if len(tails) > 1 or not sequences[0].spec.ndim:
        raise SpecError(f"pad_sequence expects sequences [length, ...] of the same trailing sizes, but got "
                        f"{[list(s.spec.shape) for s in sequences]}")
    sequences = [movement.cast_to(s, sequences[0].spec) for s in sequences]
    lengths = [s.spec.shape[0] for s in sequences]
    longest, tail = max(lengths), sequences[0].spec.shape[1:]
    if batch_first:
        # One copy of all: of the sequences, and of parts of one padding.
        whole = functional.full((longest - min(lengths), *tail), padding_value, dtype=sequences[0].dtype,
                                device=sequences[0].device)
        parts = {n: functional.narrow(whole, 0, 0, longest - n) for n in set(lengths)}
        pairs = [(s, parts[n]) if padding_side == "right" else (parts[n], s) for s, n in zip(sequences, lengths, strict=True)]
        return functional.reshape(functional.cat([*chain.from_iterable(pairs)]), (len(sequences), longest, *tail))
    padded = []
    for s in sequences:
        missing = longest - s.spec.shape[0]
        sides = [0, 0] * (s.spec.ndim - 1) + ([missing, 0] if padding_side == "left" else [0, missing])
        padded.append(F.pad(s, sides, "constant", padding_value) if missing else s)
    return functional.stack(padded, 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """Views of the sequences of given lengths in the result of :func:`pad_sequence`."""
    rows = padded_sequences if batch_first else functional.transpose(padded_sequences, 0, 1)
    sizes = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    return [functional.narrow(row, 0, 0, int(n)) for row, n in zip(functional.unbind(rows), sizes, strict=True)]


# -- packed ------------------------------------------------------------------------------------------------------------


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The inverse of a permutation [N]; None of None."""
    return None if permutation is None else folding.argsort(permutation)


class _Packed(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class PackedSequence(_Packed):
    """Sequences without padding, step by step: the first step of all, then the second of those that have one, and so on.

    ``data`` is [total steps, ...]; ``batch_sizes``, int64 on the CPU, holds the number of sequences that have each step.
    Sequences are in order of decreasing length: ``sorted_indices`` are their original positions, and ``unsorted_indices`` the
    inverse permutation, which is computed if it is not given; both are None if the order did not change.
    """

    __slots__ = ()

    def __new__(cls, data: Tensor, batch_sizes: Tensor = None, sorted_indices: Tensor | None = None,
                unsorted_indices: Tensor | None = None) -> PackedSequence:
        inverse = invert_permutation(sorted_indices) if unsorted_indices is None else unsorted_indices
        return super().__new__(cls, data, batch_sizes, sorted_indices, inverse)

    def runs(self) -> list[tuple[int, int]]:
        """Runs of steps with the same number of sequences, as (number of steps, number of sequences)."""
        return [(len(list(same)), int(n)) for n, same in groupby(self.batch_sizes.tolist())]

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """Convert the data to another device, another dtype, or both."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        moved = [None if i is None else i.to(data.device) for i in (self.sorted_indices, self.unsorted_indices)]
        return PackedSequence(data, self.batch_sizes, *moved)

    def cpu(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """On the CPU; other arguments are those of :meth:`to`."""
        return self.to(*args, **{**kwargs, "device": "cpu"})

    def cuda(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """On a GPU, the current one unless given."""
        return self.to(*args, **kwargs) if args or "device" in kwargs else self.to(device="cuda", **kwargs)

    def pin_memory(self) -> PackedSequence:
        """With the data in pinned memory."""
        return self._replace(data=self.data.pin_memory())

    def is_pinned(self) -> bool:
        return bool(self.data.is_pinned())

    @property
    def is_cuda(self) -> bool:
        return bool(self.data.is_cuda)


def _converting(name: str) -> Callable[[PackedSequence], PackedSequence]:
    def convert(self: PackedSequence) -> PackedSequence:
        data = getattr(self.data, name)()
        return self if data is self.data else self._replace(data=data)

    convert.__name__, convert.__qualname__ = name, f"PackedSequence.{name}"
    convert.__doc__ = f"With the data converted by :meth:`Tensor.{name}`."
    return convert


for _name in ("double", "float", "half", "long", "int", "short", "char", "byte"):
    setattr(PackedSequence, _name, _converting(_name))


def pack_padded_sequence(input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> PackedSequence:
    """Pack padded sequences [L, N, ...], or [N, L, ...] with ``batch_first``, of given lengths.

    Lengths are a list, or a tensor that is read on the host. With ``enforce_sorted=False``, the sequences are sorted. Raises
    RuntimeError for lengths that are not positive, not N, or not in decreasing order with ``enforce_sorted``.
    """
    sizes = [int(n) for n in (lengths.tolist() if hasattr(lengths, "tolist") else lengths)]
    steps = functional.transpose(input, 0, 1) if batch_first else input
    if len(sizes) != steps.spec.shape[1]:
        raise RuntimeError(f"Expected `len(lengths)` to be equal to batch_size, but got {len(sizes)} (batch_size="
                           f"{steps.spec.shape[1]})")
    if not sizes or min(sizes) <= 0:
        raise RuntimeError("Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0")
    if max(sizes) > steps.spec.shape[0]:
        raise RuntimeError(f"Expected lengths of at most {steps.spec.shape[0]}, but got {max(sizes)}")
    order = sorted(range(len(sizes)), key=lambda k: -sizes[k])
    indices = None, None
    if not enforce_sorted:
        indices = tuple(functional.tensor(i, device=input.storage.device) for i in (order, np.argsort(order)))
    elif any(a < b for a, b in pairwise(sizes)):
        raise RuntimeError("`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass "
                           "`enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this requirement")
    counts = np.greater.outer(sizes, np.arange(max(sizes))).sum(0).tolist()
    # One op for all steps, since their sizes are hardly ever those of another batch: an op on new sizes takes longest.
    steps, columns = _places(counts)
    length, batch = input.spec.shape[1::-1] if batch_first else input.spec.shape[:2]
    columns = np.asarray(order)[columns]
    rows = functional.tensor(columns * length + steps if batch_first else steps * batch + columns, device=input.storage.device)
    flat = functional.reshape(input, (length * batch, *input.spec.shape[2:]))
    return PackedSequence(functional.index_select(flat, 0, rows), _on_host(counts), *indices)


def _places(counts: Sequence[int]) -> tuple[Any, Any]:
    """The step of each row of packed sequences, and the number of its sequence, by the numbers of sequences at each step."""
    steps = np.repeat(np.arange(len(counts)), counts)
    return steps, np.arange(len(steps)) - np.repeat(np.cumsum([0, *counts[:-1]]), counts)


def pad_packed_sequence(sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0,
                        total_length: int | None = None) -> tuple[Tensor, Tensor]:
    """Padded sequences [L, N, ...], or [N, L, ...] with ``batch_first``, and their lengths, int64 [N].

    L is ``total_length``, by default the largest length. Raises ValueError if it is too small, or if batch sizes grow, and
    :class:`~gradcore.errors.DataDependentShape` for sequences on meta that were packed with ``enforce_sorted=False``.
    """
    counts = sequence.batch_sizes.tolist()
    length, batch = len(counts), counts[0]
    if any(a < b for a, b in pairwise(counts)):
        raise ValueError(f"pad_packed_sequence: expected batch sizes in decreasing order, but got {counts}")
    if total_length is not None and total_length < length:
        raise ValueError(f"Expected total_length to be at least the length of the longest sequence in input, but got "
                         f"total_length={total_length} and max sequence length being {length}")
    length = length if total_length is None else total_length
    steps, columns = _places(counts)
    order = None if sequence.unsorted_indices is None else _read(sequence.unsorted_indices)
    # Indices of a program's own may leave sequences out, or repeat them.
    chosen = order is not None and sorted(order) != [*range(batch)]
    if order is not None and not chosen:
        columns = np.argsort(order)[columns]
    lengths = np.bincount(columns, minlength=batch)
    # Batch sizes of its own may end before the rows do.
    data, tail = sequence.data, sequence.data.spec.shape[1:]
    data = functional.narrow(data, 0, 0, len(steps)) if data.spec.shape[0] > len(steps) else data
    rows = functional.tensor(columns * length + steps if batch_first else steps * batch + columns, device=data.storage.device)
    padded = functional.full((length * batch, *tail), padding_value, dtype=data.spec.dtype, device=data.storage.device)
    padded = placing.put_(padded, rows, data, dim=0, wrap=False)
    padded = functional.reshape(padded, ((batch, length) if batch_first else (length, batch)) + tail)
    if chosen:
        padded, lengths = functional.index_select(padded, 1 - batch_first, sequence.unsorted_indices), lengths[order]
    return padded, _on_host(lengths)


def _on_host(counts: Any) -> Tensor:
    """int64 on the CPU, in NumPy's memory: a GPU's pool has no bytes of them, so that of the CPU has none either."""
    return functional.from_numpy(np.array(counts, np.int64))


def _read(indices: Tensor) -> list[int]:
    need_values("pad_packed_sequence", indices.storage.device, "how sequences were sorted",
                "give pack_padded_sequence lengths in decreasing order, and leave out enforce_sorted=False")
    order: list[int] = indices.tolist()
    return order


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences [length, ...] with the same trailing sizes; see :func:`pack_padded_sequence`."""
    return pack_padded_sequence(pad_sequence(sequences), [s.spec.shape[0] for s in sequences], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The list of sequences that :func:`pack_sequence` packed."""
    return unpad_sequence(*pad_packed_sequence(packed_sequences))

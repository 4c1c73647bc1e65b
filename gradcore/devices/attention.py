"""Attention kernels over an array library, in blocks of queries of a few heads, whose scores stay in a core's cache.

Scores are stored transposed, [samples, heads, keys, queries]: operations along a row of scores then work on neighbors in
memory, and no matrix product has a transposed second factor, which is half as fast for narrow heads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcore.devices.kernels import dropout_factor, split_workspace
from gradcore.tiling import scores_at_once, words_a_row


@dataclass(frozen=True)
class Block:
    """Queries ``start`` to ``stop`` of a slice of samples and a slice of heads, which see the first ``keys`` keys."""

    samples: slice
    heads: slice
    start: int
    stop: int
    keys: int

    def queries(self, x: Any) -> Any:
        return x[self.samples, self.heads, self.start:self.stop]

    def seen(self, x: Any) -> Any:
        return x[self.samples, self.heads, :self.keys]

    def over_queries(self, room: Any, width: int) -> Any:
        """An array [samples, heads, width, queries] at the start of ``room``."""
        shape = (self.samples.stop - self.samples.start, self.heads.stop - self.heads.start, width, self.stop - self.start)
        return room[:math.prod(shape)].reshape(shape)


def _blocks(q: Any, k: Any, causal: bool) -> Iterator[Block]:
    """Blocks of all queries, from the last to the first; a causal one sees no keys behind its last query."""
    batch, heads, length, _ = q.shape
    keys = k.shape[2]
    samples, some, rows = scores_at_once(batch, heads, length, keys)
    for b in range(0, batch, samples):
        for h in range(0, heads, some):
            where = slice(b, min(b + samples, batch)), slice(h, min(h + some, heads))
            for start in reversed(range(0, length, rows)):
                stop = min(start + rows, length)
                yield Block(*where, start, stop, min(stop, keys) if causal else keys)


def _largest_block(q: Any, k: Any) -> tuple[int, int, int]:
    """Matrices, queries and keys of the largest block."""
    batch, heads, length, _ = q.shape
    samples, some, rows = scores_at_once(batch, heads, length, k.shape[2])
    return samples * some, rows, k.shape[2]


def _rooms_for_dropout(q: Any, k: Any, state: Any) -> list[tuple[int, Any]]:
    """Pieces of workspace for random numbers, factors and the generator's state, where there is dropout."""
    if state is None:
        return []
    matrices, rows, keys = _largest_block(q, k)
    return [(rows * words_a_row(keys), np.dtype(np.float32)), (matrices * rows * keys, q.dtype), (4, np.dtype(np.int64))]


def build_attention(xp: Any, uniform: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The two kernels over one array library, whose kernel of the op ``uniform`` draws the numbers of dropout."""
    made = _Attention(xp, uniform)
    return {"attention": made.forward, "attention_grad": made.backward}


class _Attention:
    """The kernels, with the array library and the random numbers that they use."""

    def __init__(self, xp: Any, uniform: Callable[..., Any]) -> None:
        self.xp = xp
        self._uniform = uniform

    def _future(self, room: Any, rows: int) -> Any:
        """A mask [keys, queries] with minus infinity where a key comes after the query, else 0."""
        made = room.reshape(rows, rows)
        made.fill(0)
        for j in range(1, rows):
            made[j, :j] = -self.xp.inf
        return made

    def _scores(self, block: Block, q: Any, k: Any, mask: Any, scale: float, queries: Any, room: Any, future: Any) -> Any:
        """The masked scores of a block, in ``room``; ``future`` is None unless attention is causal."""
        xp = self.xp
        scaled, made = block.over_queries(queries, q.shape[3]), block.over_queries(room, block.keys)
        # The queries are scaled, since they are fewer than the scores.
        xp.multiply(block.queries(q).swapaxes(2, 3), scale, scaled)
        xp.matmul(block.seen(k), scaled, out=made)
        if mask is not None:
            every = xp.broadcast_to(mask, (*q.shape[:3], k.shape[2]))
            xp.add(made, block.queries(every)[..., :block.keys].swapaxes(2, 3), made)
        if future is not None and block.keys > block.start:
            last = made[:, :, block.start:]
            xp.add(last, future[:block.keys - block.start, :block.stop - block.start], last)
        return made

    def _dropout(self, block: Block, q: Any, k: Any, state: Any, drop: float, rooms: list[Any]) -> Any:
        """The factor of each score under dropout: 0 or 1 / (1 - drop)."""
        numbers, room, moved = rooms
        _, heads, length, _ = q.shape
        words = words_a_row(k.shape[2])
        factors = block.over_queries(room, block.keys)
        drawn = numbers[:factors.shape[3] * words]
        for b, h in itertools.product(range(factors.shape[0]), range(factors.shape[1])):
            row = ((block.samples.start + b) * heads + block.heads.start + h) * length + block.start
            moved[...] = state
            # CuPy would allocate for moved[2:3] += ..., which also copies the sum to its own place.
            count = moved[2:3]
            count += row * (words // 8)
            self._uniform(moved, 0.0, 1.0, drawn, shape=drawn.shape, dtype=drawn.dtype)
            self.xp.greater_equal(drawn, drop, drawn)
            factors[b, h] = drawn.reshape(factors.shape[3], words)[:, :block.keys].T
        self.xp.multiply(factors, dropout_factor(drop), factors)
        return factors

    def forward(self, q: Any, k: Any, v: Any, mask: Any, state: Any, drop: Any, out: Any, lse: Any, workspace: Any, *,
                causal: bool, scale: float) -> None:
        xp = self.xp
        matrices, rows, keys = _largest_block(q, k)
        room, queries, one, numbers, square, *drops = split_workspace(
            workspace, *((length, q.dtype) for length in (
                matrices * rows * keys, matrices * rows * q.shape[3], keys, matrices * rows, rows * rows)),
            *_rooms_for_dropout(q, k, state))
        if not keys:
            out.fill(0)
            lse.fill(0)
            return
        one.fill(1)
        future = self._future(square, rows) if causal else None
        limits = xp.finfo(q.dtype)
        for block in _blocks(q, k, causal):
            p = self._scores(block, q, k, mask, scale, queries, room, future)
            top, norms, made = block.over_queries(numbers, 1), block.queries(lse), block.queries(out)
            # A product has one dtype; the scaled queries are read no more.
            total = norms if lse.dtype == q.dtype else block.over_queries(queries, 1)[:, :, 0]
            xp.amax(p, axis=2, out=top, keepdims=True)
            if mask is not None:
                # In a fully masked row the largest score is minus infinity and the sum 0: the result must be 0.
                xp.maximum(top, limits.min, out=top)
            xp.subtract(p, top, p)
            xp.exp(p, p)
            xp.matmul(one[:block.keys], p, out=total)
            if mask is not None:
                xp.maximum(total, limits.tiny, out=total)
            if state is not None:
                xp.multiply(p, self._dropout(block, q, k, state, drop, drops), p)
            xp.matmul(p.swapaxes(2, 3), block.seen(v), out=made)
            xp.true_divide(made, total[..., None], made)
            xp.log(total, norms, dtype=lse.dtype)
            xp.add(norms, top[:, :, 0], norms)

    def backward(self, dy: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, state: Any, drop: Any, dq: Any, dk: Any,
                 dv: Any, workspace: Any, *, causal: bool, scale: float) -> None:
        xp = self.xp
        matrices, rows, keys = _largest_block(q, k)
        narrow, wide = q.shape[3], v.shape[3]
        room, slopes, queries, turned, both, products, one, numbers, square, *drops = split_workspace(
            workspace, *((length, q.dtype) for length in (
                matrices * rows * keys, matrices * rows * keys, matrices * rows * narrow, matrices * rows * wide,
                matrices * rows * wide, matrices * keys * max(narrow, wide), wide, matrices * rows, rows * rows)),
            *_rooms_for_dropout(q, k, state))
        if not q.shape[2] or not keys:
            for made in (dq, dk, dv):
                made.fill(0)
            return
        one.fill(1)
        future = self._future(square, rows) if causal else None
        for block in _blocks(q, k, causal):
            p = self._scores(block, q, k, mask, scale, queries, room, future)
            xp.subtract(p, block.queries(lse)[:, :, None], p)
            xp.exp(p, p)
            g, gt, ds = block.queries(dy), block.over_queries(turned, wide), block.over_queries(slopes, block.keys)
            # Scaled here, where there are the fewest numbers, the gradients of scores are also those of the products.
            xp.multiply(g.swapaxes(2, 3), scale, gt)
            first = block.stop == q.shape[2]
            if state is None:
                self._add_product(block, dv, p, g, products, first)
                xp.matmul(block.seen(v), gt, out=ds)
            else:
                factors = self._dropout(block, q, k, state, drop, drops)
                xp.multiply(p, factors, ds)
                self._add_product(block, dv, ds, g, products, first)
                xp.matmul(block.seen(v), gt, out=ds)
                xp.multiply(ds, factors, ds)
            # Softmax's gradient subtracts the weighted mean of the gradients, which is dy . out.
            product, delta = block.over_queries(both, wide), block.over_queries(numbers, 1)
            xp.multiply(gt, block.queries(out).swapaxes(2, 3), product)
            xp.matmul(one, product, out=delta[:, :, 0])
            xp.subtract(ds, delta, ds)
            xp.multiply(ds, p, ds)
            xp.matmul(ds.swapaxes(2, 3), block.seen(k), out=block.queries(dq))
            self._add_product(block, dk, ds, block.queries(q), products, first)

    def _add_product(self, block: Block, total: Any, weights: Any, x: Any, room: Any, first: bool) -> None:
        """Add weights @ x to the keys that the block sees. The ``first`` block of a head sees the most, and starts the sum."""
        part = block.seen(total)
        if first:
            self.xp.matmul(weights, x, out=part)
            total[block.samples, block.heads, block.keys:] = 0
            return
        made = room[:part.size].reshape(part.shape)
        self.xp.matmul(weights, x, out=made)
        self.xp.add(part, made, part)

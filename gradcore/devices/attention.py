"""Attention kernels over ``xp``: blocks of queries of a few heads, whose scores stay in a core's cache.

Scores lie transposed, [samples, heads, keys, queries]: then what is done to each row of them is done to neighbours in
memory, and no matrix product has a transposed second factor, which a narrow head makes twice as slow.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gradcore.devices.kernels import split_workspace
from gradcore.tiling import scores_at_once, words_a_row


@dataclass(frozen=True)
class Block:
    """Queries ``start`` to ``stop`` of some samples and heads, two slices, which see the first ``keys`` keys."""

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


def build_attention(xp: Any, uniform: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The two kernels over one array library, whose kernel of the op ``uniform`` draws what is dropped."""
    f32, i64 = xp.dtype("float32"), xp.dtype("int64")

    def triangle(room: Any, rows: int) -> Any:
        """Minus infinity where a key, a row, stands behind a query, a column; else 0."""
        made = room.reshape(rows, rows)
        made.fill(0)
        for j in range(1, rows):
            made[j, :j] = -xp.inf
        return made

    def scores_of(block: Block, q: Any, k: Any, mask: Any, causal: bool, scaled: Any, made: Any, behind: Any) -> None:
        """The scores of a block, masked, from queries that are scaled already: they are fewer than the scores."""
        xp.matmul(block.seen(k), scaled, out=made)
        if mask is not None:
            every = xp.broadcast_to(mask, (*q.shape[:3], k.shape[2]))
            xp.add(made, block.queries(every)[..., :block.keys].swapaxes(2, 3), made)
        if causal and block.keys > block.start:
            last = made[:, :, block.start:]
            xp.add(last, behind[:block.keys - block.start, :block.stop - block.start], last)

    def sizes(q: Any, k: Any) -> tuple[int, int, int]:
        """Matrices, queries and keys of the largest block."""
        batch, heads, length, _ = q.shape
        samples, some, rows = scores_at_once(batch, heads, length, k.shape[2])
        return samples * some, rows, k.shape[2]

    def rooms_for_drops(q: Any, k: Any, state: Any) -> list[tuple[int, Any]]:
        matrices, rows, keys = sizes(q, k)
        return [] if state is None else [(rows * words_a_row(keys), f32), (matrices * rows * keys, q.dtype), (4, i64)]

    def draw(block: Block, q: Any, k: Any, state: Any, drop: float, rooms: list[Any]) -> Any:
        """What dropout leaves of each score: 0 or 1 / (1 - drop)."""
        numbers, room, moved = rooms
        _, heads, length, _ = q.shape
        words = words_a_row(k.shape[2])
        left = block.over_queries(room, block.keys)
        drawn = numbers[:left.shape[3] * words]
        for b, h in itertools.product(range(left.shape[0]), range(left.shape[1])):
            row = ((block.samples.start + b) * heads + block.heads.start + h) * length + block.start
            moved[...] = state
            moved[2:3] += row * (words // 8)
            uniform(moved, 0.0, 1.0, drawn, shape=drawn.shape, dtype=f32)
            xp.greater_equal(drawn, drop, drawn)
            left[b, h] = drawn.reshape(left.shape[3], words)[:, :block.keys].T
        xp.multiply(left, 0.0 if drop >= 1 else 1.0 / (1.0 - drop), left)
        return left

    def attention(q: Any, k: Any, v: Any, mask: Any, state: Any, drop: Any, out: Any, lse: Any, workspace: Any, *,
                  causal: bool, scale: float) -> None:
        matrices, rows, keys = sizes(q, k)
        room, queries, one, numbers, tri, *drops = split_workspace(
            workspace, *((length, q.dtype) for length in (
                matrices * rows * keys, matrices * rows * q.shape[3], keys, matrices * rows, rows * rows)),
            *rooms_for_drops(q, k, state))
        if not keys:
            out.fill(0)
            lse.fill(0)
            return
        one.fill(1)
        behind = triangle(tri, rows) if causal else None
        limits = xp.finfo(q.dtype)
        for block in _blocks(q, k, causal):
            scaled, p = block.over_queries(queries, q.shape[3]), block.over_queries(room, block.keys)
            xp.multiply(block.queries(q).swapaxes(2, 3), scale, scaled)
            scores_of(block, q, k, mask, causal, scaled, p, behind)
            top, total, made = block.over_queries(numbers, 1), block.queries(lse), block.queries(out)
            xp.amax(p, axis=2, out=top, keepdims=True)
            if mask is not None:
                # Of a row that is masked wholly the largest is minus infinity, and the sum 0: the row's result is 0.
                xp.maximum(top, limits.min, out=top)
            xp.subtract(p, top, p)
            xp.exp(p, p)
            xp.matmul(one[:block.keys], p, out=total)
            if mask is not None:
                xp.maximum(total, limits.tiny, out=total)
            if state is not None:
                xp.multiply(p, draw(block, q, k, state, drop, drops), p)
            xp.matmul(p.swapaxes(2, 3), block.seen(v), out=made)
            xp.true_divide(made, total[..., None], made)
            xp.log(total, total)
            xp.add(total, top[:, :, 0], total)

    def attention_grad(dy: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, state: Any, drop: Any, dq: Any, dk: Any,
                       dv: Any, workspace: Any, *, causal: bool, scale: float) -> None:
        matrices, rows, keys = sizes(q, k)
        narrow, wide = q.shape[3], v.shape[3]
        room, slopes, queries, turned, both, products, one, numbers, tri, *drops = split_workspace(
            workspace, *((length, q.dtype) for length in (
                matrices * rows * keys, matrices * rows * keys, matrices * rows * narrow, matrices * rows * wide,
                matrices * rows * wide, matrices * keys * max(narrow, wide), wide, matrices * rows, rows * rows)),
            *rooms_for_drops(q, k, state))
        if not q.shape[2] or not keys:
            for made in (dq, dk, dv):
                made.fill(0)
            return
        one.fill(1)
        behind = triangle(tri, rows) if causal else None

        def accumulate(block: Block, total: Any, weights: Any, x: Any) -> None:
            """Add weights @ x to the keys that the block sees; the first block of a head, which sees the most, starts it."""
            part = block.seen(total)
            if block.stop == q.shape[2]:
                xp.matmul(weights, x, out=part)
                total[block.samples, block.heads, block.keys:] = 0
                return
            made = products[:part.size].reshape(part.shape)
            xp.matmul(weights, x, out=made)
            xp.add(part, made, part)

        for block in _blocks(q, k, causal):
            scaled, p = block.over_queries(queries, narrow), block.over_queries(room, block.keys)
            xp.multiply(block.queries(q).swapaxes(2, 3), scale, scaled)
            scores_of(block, q, k, mask, causal, scaled, p, behind)
            xp.subtract(p, block.queries(lse)[:, :, None], p)
            xp.exp(p, p)
            g, gt, ds = block.queries(dy), block.over_queries(turned, wide), block.over_queries(slopes, block.keys)
            # Scaled here, where it is fewest numbers, the slopes of the scores come out as those of the products.
            xp.multiply(g.swapaxes(2, 3), scale, gt)
            if state is None:
                accumulate(block, dv, p, g)
                xp.matmul(block.seen(v), gt, out=ds)
            else:
                left = draw(block, q, k, state, drop, drops)
                xp.multiply(p, left, ds)
                accumulate(block, dv, ds, g)
                xp.matmul(block.seen(v), gt, out=ds)
                xp.multiply(ds, left, ds)
            # What softmax's gradient takes away: the mean of the slopes, which is dy . out.
            product, delta = block.over_queries(both, wide), block.over_queries(numbers, 1)
            xp.multiply(gt, block.queries(out).swapaxes(2, 3), product)
            xp.matmul(one, product, out=delta[:, :, 0])
            xp.subtract(ds, delta, ds)
            xp.multiply(ds, p, ds)
            xp.matmul(ds.swapaxes(2, 3), block.seen(k), out=block.queries(dq))
            accumulate(block, dk, ds, block.queries(q))

    return {"attention": attention, "attention_grad": attention_grad}

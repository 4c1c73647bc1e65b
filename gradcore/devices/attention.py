"""Attention kernels over ``xp``: blocks of queries of a few heads, whose scores stay in a core's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gradcore.devices.kernels import split_workspace
from gradcore.tiling import QUERIES, heads_at_once

#: (batch and heads, first query, one past the last, keys)
Block = tuple[tuple[Any, ...], int, int, int]


def _blocks(q: Any, k: Any, causal: bool) -> Iterator[Block]:
    """Blocks of all queries; a causal one sees no keys behind its last query."""
    batch, heads, length, _ = q.shape
    keys = k.shape[2]
    some = heads_at_once(heads, length, keys)
    for b in range(batch):
        for h in range(0, heads, some):
            for start in range(0, length, QUERIES):
                stop = min(start + QUERIES, length)
                yield (b, slice(h, min(h + some, heads))), start, stop, min(stop, keys) if causal else keys


def build_attention(xp: Any) -> dict[str, Callable[..., Any]]:
    """The two kernels over one array library."""

    def triangle(room: Any, rows: int) -> Any:
        """0 on and below the diagonal, minus infinity above it."""
        made = room[:rows * rows].reshape(rows, rows)
        made.fill(0)
        for i in range(rows - 1):
            made[i, i + 1:] = -xp.inf
        return made

    def scores_of(q: Any, k: Any, mask: Any, block: Block, causal: bool, scaled: Any, room: Any, above: Any) -> Any:
        """The scores of a block, masked, from queries that are scaled already: they are fewer than the scores."""
        where, start, stop, keys = block
        made = room[:scaled.shape[0] * (stop - start) * keys].reshape(scaled.shape[0], stop - start, keys)
        xp.matmul(scaled, k[where][:, :keys].swapaxes(1, 2), out=made)
        if mask is not None:
            xp.add(made, xp.broadcast_to(mask, (*q.shape[:3], k.shape[2]))[where][:, start:stop, :keys], made)
        if causal and keys > start:
            last = made[:, :, start:]
            xp.add(last, above[:stop - start, :keys - start], last)
        return made

    def scaled_queries(q: Any, block: Block, scale: float, room: Any) -> Any:
        rows = q[block[0]][:, block[1]:block[2]]
        made = room[:rows.size].reshape(rows.shape)
        xp.multiply(rows, scale, made)
        return made

    def attention(q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, workspace: Any, *, causal: bool,
                  scale: float) -> None:
        heads, rows, keys = heads_at_once(q.shape[1], q.shape[2], k.shape[2]), min(q.shape[2], QUERIES), k.shape[2]
        room, queries, one, numbers, tri = split_workspace(
            workspace, (heads * rows * keys, q.dtype), (heads * rows * q.shape[3], q.dtype), (keys, q.dtype),
            (heads * rows, q.dtype), (rows * rows, q.dtype))
        one.fill(1)
        above = triangle(tri, rows) if causal else None
        for block in _blocks(q, k, causal):
            where, start, stop, seen = block
            p = scores_of(q, k, mask, block, causal, scaled_queries(q, block, scale, queries), room, above)
            top = numbers[:p.shape[0] * p.shape[1]].reshape(*p.shape[:2], 1)
            total = lse[where][:, start:stop]
            xp.amax(p, axis=2, out=top, keepdims=True)
            xp.subtract(p, top, p)
            xp.exp(p, p)
            xp.matmul(p, one[:seen], out=total)
            made = out[where][:, start:stop]
            xp.matmul(p, v[where][:, :seen], out=made)
            xp.true_divide(made, total[:, :, None], made)
            xp.log(total, total)
            xp.add(total, top[:, :, 0], total)

    def attention_grad(dy: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, dq: Any, dk: Any, dv: Any,
                       workspace: Any, *, causal: bool, scale: float) -> None:
        heads, rows, keys = heads_at_once(q.shape[1], q.shape[2], k.shape[2]), min(q.shape[2], QUERIES), k.shape[2]
        wide = max(q.shape[3], v.shape[3])
        room, slopes, queries, products, numbers, tri = split_workspace(
            workspace, (heads * rows * keys, q.dtype), (heads * rows * keys, q.dtype), (heads * rows * q.shape[3], q.dtype),
            (heads * max(rows, keys) * wide, q.dtype), (heads * rows, q.dtype), (rows * rows, q.dtype))
        above = triangle(tri, rows) if causal else None
        dk.fill(0)
        dv.fill(0)

        def product(a: Any, b: Any) -> Any:
            made = products[:a.shape[0] * a.shape[1] * b.shape[2]].reshape(a.shape[0], a.shape[1], b.shape[2])
            return xp.matmul(a, b, out=made)

        for block in _blocks(q, k, causal):
            where, start, stop, seen = block
            scaled = scaled_queries(q, block, scale, queries)
            p = scores_of(q, k, mask, block, causal, scaled, room, above)
            xp.subtract(p, lse[where][:, start:stop, None], p)
            xp.exp(p, p)
            g = dy[where][:, start:stop]
            # What softmax's gradient takes away: the mean of the slopes, which is dy . out.
            delta = numbers[:p.shape[0] * p.shape[1]].reshape(p.shape[:2])
            both = products[:g.size].reshape(g.shape)
            xp.multiply(g, out[where][:, start:stop], both)
            xp.sum(both, axis=2, out=delta)
            part = dv[where][:, :seen]
            xp.add(part, product(p.swapaxes(1, 2), g), part)
            ds = slopes[:p.size].reshape(p.shape)
            xp.matmul(g, v[where][:, :seen].swapaxes(1, 2), out=ds)
            xp.subtract(ds, delta[:, :, None], ds)
            xp.multiply(ds, p, ds)
            part = dq[where][:, start:stop]
            xp.matmul(ds, k[where][:, :seen], out=part)
            xp.multiply(part, scale, part)
            part = dk[where][:, :seen]
            xp.add(part, product(ds.swapaxes(1, 2), scaled), part)

    return {"attention": attention, "attention_grad": attention_grad}

"""Functions of shape and position as users call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.forms import Form
from tests.rows import Operand, bools, floats, ints

FORMS: list[Form] = []


def form(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    FORMS.append(Form(name, call, operands, **options))


_f, _cube, _t = floats(3, 4), floats(2, 3, 4), floats(3, 4, layout="transposed")
_empty, _0d = floats(0, 3), floats()

#: Operations on a tensor, each with its operands.
SHAPES: dict[str, tuple[Callable[[Any, Any], Any], tuple[Operand, ...]]] = {
    "flip": (lambda t, x: t.flip(x, (0,)), (_f, _t, _empty)), "Tensor.flip": (lambda t, x: x.flip(0, -1), (_f, _t)),
    "fliplr": (lambda t, x: t.fliplr(x), (_f,)), "flipud": (lambda t, x: t.flipud(x), (_f, floats(3))),
    "rot90": (lambda t, x: t.rot90(x), (_f, _t)), "rot90:three": (lambda t, x: t.rot90(x, 3, (0, 1)), (_f,)),
    "rot90:two": (lambda t, x: x.rot90(2, (1, 0)), (_f,)), "rot90:four": (lambda t, x: x.rot90(-4), (_f,)),
    "roll": (lambda t, x: t.roll(x, 2, 1), (_f, _t)), "roll:flat": (lambda t, x: x.roll(-3), (_f, _t, _0d)),
    "roll:several": (lambda t, x: t.roll(x, shifts=(1, -2), dims=(0, 1)), (_f,)),
    "movedim": (lambda t, x: t.movedim(x, 0, 2), (_cube,)), "moveaxis": (lambda t, x: x.moveaxis((0, 2), (1, 0)), (_cube,)),
    "swapaxes": (lambda t, x: t.swapaxes(x, 0, 1), (_cube,)), "swapdims": (lambda t, x: x.swapdims(0, -1), (_cube,)),
    "adjoint": (lambda t, x: x.adjoint(), (_cube,)), "ravel": (lambda t, x: t.ravel(x), (_f, _t, _0d)),
    "Tensor.repeat": (lambda t, x: x.repeat(2, 3), (_f, _t, floats(3), _empty, _0d)),
    "Tensor.repeat:ones": (lambda t, x: x.repeat(1, 1), (_f,)), "Tensor.repeat:none": (lambda t, x: x.repeat(0, 2), (_f,)),
    "tile": (lambda t, x: t.tile(x, (2,)), (_f, _0d)), "Tensor.tile": (lambda t, x: x.tile(2, 1, 2), (_f,)),
    "repeat_interleave": (lambda t, x: t.repeat_interleave(x, 2), (_f, _t)),
    "repeat_interleave:dim": (lambda t, x: x.repeat_interleave(3, dim=1), (_f, _t)),
    "repeat_interleave:size": (lambda t, x: x.repeat_interleave(t.tensor([2, 0, 1]), dim=0, output_size=3), (_f,)),
    "repeat_interleave:each": (lambda t, x: t.repeat_interleave(x, t.tensor([2]), 1, output_size=2 * x.shape[1]), (_f, _t)),
    "repeat_interleave:tensor": (lambda t, x: x.repeat_interleave(t.tensor([2, 0, 1]), dim=0), (_f,)),
    "atleast_1d": (lambda t, x: t.atleast_1d(x), (_0d, _f)), "atleast_2d": (lambda t, x: t.atleast_2d(x), (_0d, floats(3), _f)),
    "atleast_3d": (lambda t, x: t.atleast_3d(x), (_0d, floats(3), _f, _cube)),
    "tensor_split": (lambda t, x: t.tensor_split(x, 3, 1), (_f,)),
    "tensor_split:indices": (lambda t, x: x.tensor_split((1, 3), dim=-1), (_f,)),
    "hsplit": (lambda t, x: t.hsplit(x, 2), (_f, floats(4))), "vsplit": (lambda t, x: x.vsplit(3), (_f,)),
    "dsplit": (lambda t, x: t.dsplit(x, (1,)), (_cube,)),
    "split_with_sizes": (lambda t, x: x.split_with_sizes((1, 3), 1), (_f,)), "split": (lambda t, x: t.split(x, 3, 1), (_f,)),
    "chunk": (lambda t, x: x.chunk(2, -1), (_f,)), "unbind": (lambda t, x: t.unbind(x, 1), (_f,)),
    "flatten": (lambda t, x: t.flatten(x, 1), (_cube, _t)), "unflatten": (lambda t, x: x.unflatten(1, (2, -1)), (_f,)),
    "squeeze": (lambda t, x: t.squeeze(x), (floats(1, 3, 1),)),
    "squeeze:dim": (lambda t, x: x.squeeze(0), (floats(1, 3, 1), _f)), "unsqueeze": (lambda t, x: x.unsqueeze(-1), (_f,)),
    "permute": (lambda t, x: t.permute(x, (2, 0, 1)), (_cube,)), "transpose": (lambda t, x: x.transpose(0, 1), (_f,)),
    "t": (lambda t, x: x.t(), (_f, floats(3))), "expand": (lambda t, x: x.expand(2, -1, 4), (floats(3, 1),)),
    "broadcast_to": (lambda t, x: t.broadcast_to(x, (2, 3)), (floats(3),)),
    "narrow": (lambda t, x: t.narrow(x, 1, 1, 2), (_f,)), "select": (lambda t, x: t.select(x, 1, -1), (_f,)),
    "reshape": (lambda t, x: t.reshape(x, (4, -1)), (_f, _t)),
    "Tensor.view": (lambda t, x: x.view(2, 6), (_f,)), "Tensor.view_as": (lambda t, x: x.view_as(t.zeros(6, 2)), (_f,)),
    "Tensor.reshape_as": (lambda t, x: x.reshape_as(t.zeros(6, 2)), (_t,)), "Tensor.T": (lambda t, x: x.T, (_f,)),
    "Tensor.mT": (lambda t, x: x.mT, (_cube,)), "tril": (lambda t, x: t.tril(x, 1), (_f,)),
    "triu": (lambda t, x: x.triu(), (_cube,)),
    "diagonal": (lambda t, x: t.diagonal(x), (_f, _t, _cube)), "diagonal:offset": (lambda t, x: x.diagonal(-1, 1, 2), (_cube,)),
    "diag": (lambda t, x: t.diag(x), (_f, floats(3))), "diag:beside": (lambda t, x: x.diag(1), (_f, floats(3))),
    "diag:below": (lambda t, x: x.diag(-2), (_f, floats(3), _empty)),
    "diag_embed": (lambda t, x: t.diag_embed(x), (_f, floats(3))),
    "diag_embed:dims": (lambda t, x: x.diag_embed(-1, 0, 2), (_f,)),
    "diagflat": (lambda t, x: t.diagflat(x, 1), (floats(2, 2),)),
    "trace": (lambda t, x: t.trace(x), (_f, _t)), "Tensor.unfold": (lambda t, x: x.unfold(1, 3, 1), (_f, _t)),
    "Tensor.unfold:steps": (lambda t, x: x.unfold(0, 2, 1), (_f, floats(3))),
    "argwhere": (lambda t, x: t.argwhere(x > 0), (_f,)), "nonzero": (lambda t, x: t.nonzero(x > 0), (_f, _0d)),
    "nonzero:tuple": (lambda t, x: (x > 0).nonzero(as_tuple=True), (_f,)),
    "count_nonzero": (lambda t, x: t.count_nonzero(x > 0), (_f, _empty)),
    "count_nonzero:dim": (lambda t, x: (x > 0).count_nonzero(1), (_f,)),
}
_NONE = {"argwhere", "nonzero", "nonzero:tuple", "count_nonzero", "count_nonzero:dim"}
for _name, (_call, _operands) in SHAPES.items():
    for _k, _operand in enumerate(_operands):
        _base, _, _case = _name.partition(":")
        _label = ":".join(filter(None, (_base, " ".join(filter(None, (_case, f"{_k}" if _k else ""))))))
        form(_label, _call, _operand, gradient=_name not in _NONE)

for _name in ("tril_", "triu_"):
    form(f"Tensor.{_name}", lambda t, x, n=_name: getattr(x.clone(), n)(1), _t)
for _name, _args, _operand in (("t_", (), _f), ("transpose_", (0, 1), _f), ("swapaxes_", (-1, 0), _t),
                               ("swapdims_", (0, 1), _f),
                               ("unsqueeze_", (1,), _t), ("squeeze_", (), floats(1, 3)), ("squeeze_", (0,), floats(1, 3))):
    form(f"Tensor.{_name}{':dim' if _args == (0,) else ''}", lambda t, x, n=_name, a=_args: getattr(x * 2, n)(*a), _operand)
form("Tensor.fill_diagonal_", lambda t, x: x.clone().fill_diagonal_(2.0), _f)

# -- of several tensors ----------------------------------------------------------------------------------------------------

for _name in ("hstack", "vstack", "dstack", "column_stack", "row_stack", "cat", "concat", "concatenate", "stack"):
    form(_name, lambda t, x, y, n=_name: getattr(t, n)([x, y]), _f, _f)
    form(f"{_name}:vectors", lambda t, x, y, n=_name: getattr(t, n)((x, y)), floats(3), floats(3))
form("cat:dim", lambda t, x, y: t.cat([x, y], dim=-1), _f, floats(3, 1))
form("stack:dim", lambda t, x, y: t.stack([x, y], dim=-1), _f, _t)
form("meshgrid", lambda t, x, y, z: t.meshgrid(x, y, z, indexing="ij"), floats(2), floats(3), floats())
form("meshgrid:xy", lambda t, x, y, z: t.meshgrid([x, y, z], indexing="xy"), floats(2), floats(3), floats(4))
form("broadcast_tensors", lambda t, x, y: t.broadcast_tensors(x, y), floats(3, 1), floats(4))
form("tril_indices", lambda t: t.tril_indices(3, 4, 1), gradient=False)
form("triu_indices", lambda t: t.triu_indices(4, 3, -1), gradient=False)

# -- positions -------------------------------------------------------------------------------------------------------------

_rows, _once = ints(3, 2, high=4), ints(3, 2, given=(2, 0, 1, 3, 0, 1))
form("gather", lambda t, x, i: t.gather(x, 1, i), _f, _rows)
form("gather:method", lambda t, x, i: x.gather(0, i), _t, ints(2, 4, high=3))
form("gather:0d", lambda t, x, i: x.gather(0, i), _0d, ints(high=1))
form("gather:empty", lambda t, x, i: x.gather(1, i), _f, ints(3, 0))
form("gather:of nothing", lambda t, x, i: x.gather(1, i), floats(3, 0), ints(3, 0))
form("take", lambda t, x, i: t.take(x, i), _t, ints(2, 3, low=-12, high=12))
form("take_along_dim", lambda t, x, i: t.take_along_dim(x, i, 1), _f, ints(1, 2, high=4))
form("index_select", lambda t, x, i: t.index_select(x, 1, i), _f, ints(5, high=4))
form("scatter", lambda t, x, i, s: t.scatter(x, 1, i, s), _f, _once, floats(3, 2))
form("scatter:larger source", lambda t, x, i, s: x.scatter(1, i, s), _f, _once, floats(3, 4), gradient=False)
form("scatter:number", lambda t, x, i: x.scatter(1, i, 2.5), _f, _rows)
form("scatter:value", lambda t, x, i: t.scatter(x, 1, i, value=2), _f, _rows)
form("scatter:0d", lambda t, x, i, s: x.scatter(0, i, s), _0d, ints(high=1), _0d)
form("scatter:add", lambda t, x, i: x.scatter(1, i, 2.0, reduce="add"), _f, _rows, gradient=False)
form("Tensor.scatter_", lambda t, x, i, s: x.clone().scatter_(1, i, s), _t, _once, floats(3, 2))
form("Tensor.scatter_:view", lambda t, x, i, s: _in_view(x, lambda v: v.scatter_(1, i, s)), _f, ints(2, 2, given=(1, 0, 0, 2)),
     floats(2, 2))
form("scatter_add", lambda t, x, i, s: t.scatter_add(x, 1, i, s), _f, _rows, floats(3, 2))
form("Tensor.scatter_add_", lambda t, x, i, s: x.clone().scatter_add_(0, i, s), _f, ints(5, 4, high=3), floats(5, 4))
form("index_add", lambda t, x, i, s: t.index_add(x, 1, i, s), _f, ints(5, high=4), floats(3, 5))
form("index_add:alpha", lambda t, x, i, s: x.index_add(0, i, s, alpha=-2), _t, ints(5, high=3), floats(5, 4))
form("index_add:1d", lambda t, x, i, s: x.index_add(0, i, s), floats(4), ints(6, high=4), floats(6))
form("Tensor.index_add_", lambda t, x, i, s: x.clone().index_add_(1, i, s), _f, ints(2, high=4), floats(3, 2))
form("index_copy", lambda t, x, i, s: t.index_copy(x, 1, i, s), _f, ints(2, given=(3, 1)), floats(3, 2))
form("Tensor.index_copy_", lambda t, x, i, s: x.clone().index_copy_(0, i, s), _f, ints(2, given=(2, 1)), floats(2, 4))
form("index_fill", lambda t, x, i: t.index_fill(x, 1, i, 0.5), _f, ints(2, given=(3, 1)))
form("index_fill:tensor", lambda t, x, i, v: x.index_fill(0, i, v), _f, ints(2, given=(2, 0)), _0d)
form("Tensor.index_fill_", lambda t, x, i: x.clone().index_fill_(1, i, 2), _f, ints(2, given=(3, 1)))
form("index_put", lambda t, x, i, v: t.index_put(x, (i,), v), _f, ints(2, given=(2, 0)), floats(2, 4))
form("index_put:pairs", lambda t, x, i, j, v: x.index_put((i, j), v), _f, ints(3, given=(2, 0, 1)), ints(3, given=(3, 3, 0)),
     floats(3))
form("index_put:accumulate", lambda t, x, i, j, v: x.index_put((i, j), v, accumulate=True), _f, ints(6, high=2),
     ints(6, high=2), floats(6))
form("Tensor.index_put_", lambda t, x, i, v: x.clone().index_put_((i,), v, accumulate=True), _f, ints(4, high=3), floats(4))
form("masked_select", lambda t, x, m: t.masked_select(x, m), _f, bools(4))
form("masked_select:method", lambda t, x, m: x.masked_select(m), floats(4), bools(3, 1))
form("masked_scatter", lambda t, x, m, s: x.masked_scatter(m, s), _f, bools(4), floats(12))
form("Tensor.masked_scatter_", lambda t, x, m, s: x.clone().masked_scatter_(m, s), _t, bools(3, 4), floats(3, 4))
form("unique", lambda t, x: t.unique(x), ints(3, 4), gradient=False)
form("unique:all", lambda t, x: x.unique(return_inverse=True, return_counts=True), ints(3, 4), gradient=False)
form("unique:dim", lambda t, x: t.unique(x, dim=0, return_counts=True), ints(5, 2, high=2), gradient=False)
form("unique:floats", lambda t, x: t.unique(x, sorted=True), floats(3, given=(2, 1, 2)), gradient=False)


def _in_view(x: Any, write: Callable[[Any], Any]) -> Any:
    whole = x.clone()
    write(whole[1:])
    return whole


# -- indexing --------------------------------------------------------------------------------------------------------------

READS: dict[str, Callable[..., Any]] = {
    "slices": lambda t, x, i, m: x[1:, ::2], "integer": lambda t, x, i, m: x[-1], "None": lambda t, x, i, m: x[:, None, 1],
    "Ellipsis": lambda t, x, i, m: x[..., 0], "tensor": lambda t, x, i, m: x[i], "list": lambda t, x, i, m: x[[0, 2, 2]],
    "two tensors": lambda t, x, i, m: x[i, i], "apart": lambda t, x, i, m: x[i, :, i], "mask": lambda t, x, i, m: x[m],
    "mask of a dimension": lambda t, x, i, m: x[m[:, 0]], "mask and slice": lambda t, x, i, m: x[1:, m[0]],
    "mask and tensor": lambda t, x, i, m: x[i[:1], m[0]],
    "list of bools": lambda t, x, i, m: x[[True, False, True]], "mask last": lambda t, x, i, m: x[..., t.tensor([True, False])],
    "none is True": lambda t, x, i, m: x[t.zeros(3, 3, dtype=t.bool)], "0d mask": lambda t, x, i, m: x[t.tensor(True)],
    "0d mask False": lambda t, x, i, m: x[t.tensor(False)], "bool": lambda t, x, i, m: x[True],
    "comparison": lambda t, x, i, m: x[x > 0]}
for _name, _call in READS.items():
    form(f"Tensor[]:{_name}", _call, floats(3, 3, 2), ints(4, high=3), bools(3, 3), smooth=_name != "comparison")
_four = ints(3, given=(2, 0, 1))


def _set(t: Any, x: Any, key: Any, value: Any) -> Any:
    x = x.clone()
    x[key] = value
    return x


WRITES: dict[str, Callable[..., Any]] = {
    "slice": lambda t, x, i, m, v: _set(t, x, slice(1, None), v[0]), "integer": lambda t, x, i, m, v: _set(t, x, -1, v[0]),
    "number": lambda t, x, i, m, v: _set(t, x, (..., 0), 1.5), "None": lambda t, x, i, m, v: _set(t, x, (0, None), v[0]),
    "tensor": lambda t, x, i, m, v: _set(t, x, i, v), "two tensors": lambda t, x, i, m, v: _set(t, x, (i, i), v[:, 0]),
    "mask and number": lambda t, x, i, m, v: _set(t, x, m, 2.0),
    "mask and 0d": lambda t, x, i, m, v: _set(t, x, m, v[0, 0, 0]),
    "mask and row": lambda t, x, i, m, v: _set(t, x, m, v[0, 0]),
    "mask and rows": lambda t, x, i, m, v: _set(t, x, m, v.reshape(-1, 2)[:int(m.sum())]),
    "mask of a dimension": lambda t, x, i, m, v: _set(t, x, m[0], v[:1]),
    "mask and slice": lambda t, x, i, m, v: _set(t, x, (slice(None), m[0]), v[:, :1]),
    "mask of a view": lambda t, x, i, m, v: _in_view(x, lambda part: part.__setitem__(m[1:], -1.0))}
for _name, _call in WRITES.items():
    form(f"Tensor[]=:{_name}", _call, floats(3, 3, 2), _four, bools(3, 3), floats(3, 3, 2))

# -- padding ---------------------------------------------------------------------------------------------------------------


def padding(*args: Any, **attrs: Any) -> Callable[..., Any]:
    return lambda t, x: t.nn.functional.pad(x, *args, **attrs)


form("nn.functional.pad", padding((1, 2)), _f)
form("nn.functional.pad:two", padding((1, 2, 0, 3)), _t)
form("nn.functional.pad:value", padding((1, 0), value=-1.5), _f)
form("nn.functional.pad:cut", padding((-1, 2, 1, -2)), _f)
form("nn.functional.pad:cut value", padding((-1, 2, 1, -2), value=2.0), _f)
form("nn.functional.pad:nothing", padding((0, 0)), _f)
form("nn.functional.pad:empty", padding((1, 1)), floats(2, 0))
for _mode in ("reflect", "replicate", "circular"):
    form(f"nn.functional.pad:{_mode} 1d", padding((2, 1), mode=_mode), _cube)
    form(f"nn.functional.pad:{_mode} 2d", padding((1, 2, 2, 0), _mode), floats(2, 2, 3, 4))
    form(f"nn.functional.pad:{_mode} unbatched", padding((3, 0), mode=_mode), _f)
for _name, _attrs in {"plain": {}, "stride": {"stride": 2}, "padding": {"padding": (1, 2)}, "dilation": {"dilation": (2, 1)},
                      "all": {"stride": (2, 1), "padding": 1, "dilation": 2}}.items():
    form(f"nn.functional.unfold:{_name}", lambda t, x, a=_attrs: t.nn.functional.unfold(x, (2, 3), **a), floats(2, 2, 5, 6))
    form(f"nn.functional.fold:{_name}", lambda t, x, a=_attrs: t.nn.functional.fold(
        t.nn.functional.unfold(x, (2, 3), **a) * 2, (5, 6), (2, 3), **a), floats(2, 2, 5, 6))
form("nn.functional.unfold:unbatched", lambda t, x: t.nn.functional.unfold(x, 2), floats(2, 4, 4))
form("nn.functional.fold:unbatched", lambda t, x: t.nn.functional.fold(x, (3, 3), 2), floats(8, 4))
form("Tensor.H", lambda t, x: x.H + x.T, floats(3, 4))
form("Tensor.mH", lambda t, x: x.mH, floats(2, 3, 4))
form("Tensor.new_tensor", lambda t, x: x.new_tensor([[1, 2], [3, 4]]) + x, floats(2, 2))
form("Tensor.new_tensor:dtype", lambda t, x: x.new_tensor([1.5, 2], dtype=t.int32), floats(2), gradient=False)
form("Tensor.nelement", lambda t, x: x * x.nelement() + x.ndimension(), floats(2, 3))

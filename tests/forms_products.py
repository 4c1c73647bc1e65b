"""Products and linear algebra as users call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.forms import Form
from tests.rows import Operand, floats
from tests.rows_linalg import definite, regular

FORMS: list[Form] = []


def form(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    FORMS.append(Form(name, call, operands, **options))


_a, _b, _t = floats(2, 3), floats(3, 4), floats(2, 3, layout="transposed")
_u, _v, _w = floats(3), floats(3), floats(4)
_x, _y = floats(2, 3, 4), floats(2, 4, 5)

form("mm", lambda t, a, b: t.mm(a, b), _a, _b)
form("bmm", lambda t, a, b: t.bmm(a, b), _x, _y)
form("mv", lambda t, a, b: t.mv(a, b), _t, _u)
form("dot", lambda t, a, b: t.dot(a, b), _u, _v)
form("vdot", lambda t, a, b: t.vdot(a, b), _u, _v)
form("matmul", lambda t, a, b: t.matmul(a, b), _x, floats(4))
form("Tensor @ Tensor", lambda t, a, b: a @ b, floats(5, 1, 2, 3), floats(2, 3, 2))
for _name in ("outer", "ger"):
    form(_name, lambda t, a, b, n=_name: getattr(t, n)(a, b), _u, _w)
form("inner", lambda t, a, b: t.inner(a, b), _x, floats(5, 4))
form("inner:vectors", lambda t, a, b: a.inner(b), _u, _v)
form("inner:0d", lambda t, a, b: a.inner(b), floats(), _v)
for _how, _options in {"": {}, ":scaled": {"beta": 0.5, "alpha": -2}, ":without": {"beta": 0}}.items():
    form(f"addmm{_how}", lambda t, c, a, b, o=_options: t.addmm(c, a, b, **o), _w, _a, _b)
    form(f"addmv{_how}", lambda t, c, a, b, o=_options: t.addmv(c, a, b, **o), floats(2), _a, _u)
    form(f"addr{_how}", lambda t, c, a, b, o=_options: t.addr(c, a, b, **o), _b, _u, _w)
    form(f"baddbmm{_how}", lambda t, c, a, b, o=_options: t.baddbmm(c, a, b, **o), floats(2, 1, 5), _x, _y)
    form(f"addbmm{_how}", lambda t, c, a, b, o=_options: c.addbmm(a, b, **o), floats(3, 5), _x, _y)
for _how, _options in {"": {}, ":scaled": {"beta": 0.5, "alpha": -2}, ":without": {"beta": 0}}.items():
    for _name, _operands in {"addmm_": (floats(2, 4), _a, _b), "addmv_": (floats(2), _a, _u), "addr_": (_b, _u, _w),
                             "baddbmm_": (floats(2, 3, 5), _x, _y), "addbmm_": (floats(3, 5), _x, _y)}.items():
        form(f"Tensor.{_name}{_how}", lambda t, c, a, b, n=_name, o=_options: getattr(c.clone(), n)(a, b, **o), *_operands)
form("tensordot", lambda t, a, b: t.tensordot(a, b), _x, floats(3, 4, 2))
form("tensordot:number", lambda t, a, b: t.tensordot(a, b, dims=1), _x, _w)
form("tensordot:none", lambda t, a, b: t.tensordot(a, b, dims=0), _a, _u)
form("tensordot:lists", lambda t, a, b: t.tensordot(a, b, dims=([1, 0], [0, 2])), _x, floats(3, 5, 2))
form("kron", lambda t, a, b: t.kron(a, b), _a, _b)
form("kron:more dimensions", lambda t, a, b: a.kron(b), _x, _a)
form("kron:vectors", lambda t, a, b: t.kron(a, b), _u, _w)
form("linalg.cross", lambda t, a, b: t.linalg.cross(a, b), _t, floats(1, 3))
form("Tensor.cross", lambda t, a, b: a.cross(b, dim=0), _b, _b)
form("chain_matmul", lambda t, a, b, c: t.linalg.multi_dot((a, b, c)), _a, _b, floats(4, 2))

EINSUMS: dict[str, tuple[Operand, ...]] = {
    "ij,jk->ik": (_a, _b), "ij,jk": (_a, _b), "ij->ji": (_t,), "ij->": (_a,), "ij->j": (_a,), "ii->i": (floats(3, 3),),
    "ii": (floats(3, 3),), "bij,bjk->bik": (_x, _y), "bij,bjk->bki": (_x, _y), "i,j->ij": (_u, _w), "i,i->": (_u, _v),
    "i,i->i": (_u, _v), "ij,ij->": (_a, _t), "ij,kj->ik": (_a, floats(4, 3)), "ij,j->i": (_a, _u), "bhqd,bhkd->bhqk": (
        floats(2, 2, 3, 4), floats(2, 2, 5, 4, layout="plain")), "bhqd,bkhd->bqhk": (floats(2, 2, 3, 4), floats(2, 5, 2, 4)),
    "...ij,...jk->...ik": (floats(2, 1, 2, 3), floats(3, 3, 4)), "...i->...": (_x,), "...i->i": (_x,),
    "b...a": (_x,), "i...,i->...": (_a, floats(2)),
    "ij,jk,kl->il": (_a, _b, floats(4, 2)), "ij,jk,ki->": (_a, _b, floats(4, 2)), "iji->j": (floats(2, 3, 2),),
    "a,b,c->cab": (_u, _w, floats(2)), "ij,kl->ijkl": (_a, _b), "ijk,k->ji": (_x, _w), " i j , j -> i ": (_a, _u),
    "ij,jk->": (_a, _b), "bi,bj->bij": (_a, floats(2, 4)), "ij,ij->ij": (_a, floats(1, 3)), "ij,jk->ik with one": (
        floats(2, 1), floats(3, 4)), "Ab,bC->AC": (_a, _b), "iij,j->i": (floats(2, 2, 3), _u), "ij,jk->ik empty": (
            floats(0, 3), _b)}
for _equation, _operands in EINSUMS.items():
    _plain = _equation.removesuffix(" with one").removesuffix(" empty")
    form(f"einsum:{_equation}", lambda t, *xs, e=_plain: t.einsum(e, *xs), *_operands)
form("einsum:list", lambda t, a, b: t.einsum("ij,jk->ik", [a, b]), _a, _b)

# -- torch.linalg ------------------------------------------------------------------------------------------------------------

for _p in (0, 1, 2, 3, float("inf"), -float("inf")):
    form(f"linalg.vector_norm:{_p}", lambda t, x, p=_p: t.linalg.vector_norm(x, p, dim=1, keepdim=True), _x)
    form(f"linalg.norm:vectors {_p}", lambda t, x, p=_p: t.linalg.norm(x, p, dim=0), _a)
form("linalg.norm", lambda t, x: t.linalg.norm(x), _x)
for _p in ("fro", 1, -1, float("inf"), -float("inf")):
    form(f"linalg.norm:matrix {_p}", lambda t, x, p=_p: t.linalg.norm(x, p), _t)
    form(f"linalg.matrix_norm:{_p}", lambda t, x, p=_p: t.linalg.matrix_norm(x, p, dim=(0, 2), keepdim=True), _x)
_m, _batch, _pd = regular(3, 3), regular(2, 3, 3), definite(2, 3, 3)
LOOSE = {"tolerance": 1e-4, "double": 1e-9}
form("linalg.inv", lambda t, a: t.linalg.inv(a), _m, **LOOSE)
form("inverse", lambda t, a: t.inverse(a), _batch, **LOOSE)
form("Tensor.inverse", lambda t, a: a.inverse(), _m, **LOOSE)
_six = regular(6, 6)
form("linalg.tensorinv", lambda t, a: t.linalg.tensorinv(a.reshape(2, 3, 6)), _six, **LOOSE)
form("linalg.tensorinv:ind", lambda t, a: t.linalg.tensorinv(a.reshape(6, 3, 2), ind=1), _six, **LOOSE)
form("linalg.tensorsolve", lambda t, a, b: t.linalg.tensorsolve(a.reshape(2, 3, 6), b), _six, floats(2, 3), **LOOSE)
form("linalg.tensorsolve:dims", lambda t, a, b: t.linalg.tensorsolve(a.reshape(2, 3, 6).permute(0, 2, 1), b, dims=(1,)), _six,
     floats(2, 3), **LOOSE)
form("linalg.vander", lambda t, x: t.linalg.vander(x, N=3), floats(2, 4))
form("linalg.vander:0d", lambda t, x: t.linalg.vander(x, N=2), floats())
form("linalg.vander:square", lambda t, x: t.linalg.vander(x), floats(3))
form("linalg.solve", lambda t, a, b: t.linalg.solve(a, b), _m, floats(3, 2), **LOOSE)
form("linalg.solve:vector", lambda t, a, b: t.linalg.solve(a, b), _m, _u, **LOOSE)
form("linalg.solve:vectors", lambda t, a, b: t.linalg.solve(a, b), _batch, floats(2, 3), **LOOSE)
form("linalg.solve:broadcast", lambda t, a, b: t.linalg.solve(a, b), _m, floats(2, 3, 4), **LOOSE)
form("linalg.solve:right", lambda t, a, b: t.linalg.solve(a, b, left=False), _batch, floats(2, 4, 3), **LOOSE)
_b32, _b3 = floats(3, 2), floats(2, 3, 2)


def _steady(t: Any, a: Any) -> Any:
    """A matrix with a large diagonal."""
    return a + 3 * t.eye(3, dtype=a.dtype)


def _triangle(t: Any, a: Any, half: dict[str, bool]) -> Any:
    """A factor of a positive definite matrix."""
    a = _steady(t, a)
    return a.triu() if half["upper"] else a.tril()


for _upper in (False, True):
    _half = {"upper": _upper}
    _way = "upper" if _upper else "lower"
    form(f"linalg.solve_triangular:{_way}", lambda t, a, b, k=_half: t.linalg.solve_triangular(_steady(t, a), b, **k), _m, _b32,
         **LOOSE)
    # PyTorch's gradients are not 0 where the other triangle is not read, so a triangle is made first.
    form(f"cholesky_solve:{_way}", lambda t, a, b, k=_half: t.cholesky_solve(b, _triangle(t, a, k), **k), _m, _b32, **LOOSE)
    form(f"cholesky_solve:{_way} batch", lambda t, a, b, k=_half: b.cholesky_solve(_triangle(t, a, k), **k), _batch, _b3,
         **LOOSE)
    form(f"cholesky_inverse:{_way}", lambda t, a, k=_half: t.cholesky_inverse(_triangle(t, a, k), **k), _m, **LOOSE)
    form(f"cholesky_inverse:{_way} batch", lambda t, a, k=_half: _triangle(t, a, k).cholesky_inverse(**k), _batch, **LOOSE)
    form(f"linalg.solve_triangular:{_way} right",
         lambda t, a, b, k=_half: t.linalg.solve_triangular(_steady(t, a), b, left=False, **k), _batch, floats(1, 4, 3),
         **LOOSE)
    form(f"linalg.solve_triangular:{_way} with ones",
         lambda t, a, b, k=_half: t.linalg.solve_triangular(a, b, unitriangular=True, **k), _m, _b3, **LOOSE)
form("linalg.det", lambda t, a: t.linalg.det(a), _batch, **LOOSE)
form("det", lambda t, a: t.det(a), _m, **LOOSE)
form("Tensor.det", lambda t, a: a.det(), _m, **LOOSE)
form("linalg.slogdet", lambda t, a: tuple(t.linalg.slogdet(a)), _batch, **LOOSE)
form("linalg.cholesky", lambda t, a: t.linalg.cholesky(a), _pd, smooth=False, **LOOSE)
form("linalg.cholesky:upper", lambda t, a: t.linalg.cholesky(a, upper=True), _pd, smooth=False, **LOOSE)
form("linalg.cholesky:of a product", lambda t, a: t.linalg.cholesky(a @ a.mT + 2 * t.eye(3, dtype=a.dtype)), _m, **LOOSE)
for _n in (-2, 0, 1, 2, 5):
    form(f"linalg.matrix_power:{_n}", lambda t, a, n=_n: t.linalg.matrix_power(a, n), _m, gradient=_n != 0, **LOOSE)
for _scale in (0.0, 0.1, 1.0, 8.0):
    form(f"linalg.matrix_exp:{_scale}", lambda t, a, by=_scale: t.linalg.matrix_exp(a * by), _batch, **LOOSE)
form("matrix_exp", lambda t, a: t.matrix_exp(a), _m, **LOOSE)
form("Tensor.matrix_exp", lambda t, a: (a - a.mT).matrix_exp(), _m, **LOOSE)
form("linalg.multi_dot", lambda t, *xs: t.linalg.multi_dot(xs), _u, floats(3, 5), floats(5, 2), floats(2))
form("linalg.multi_dot:matrices", lambda t, *xs: t.linalg.multi_dot(xs), floats(2, 6), floats(6, 3), floats(3, 7), floats(7, 1))
form("linalg.matmul", lambda t, a, b: t.linalg.matmul(a, b), _a, _b)
form("linalg.vecdot", lambda t, a, b: t.linalg.vecdot(a, b, dim=0), _a, _t)
form("linalg.diagonal", lambda t, a: t.linalg.diagonal(a), _x)

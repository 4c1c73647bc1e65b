"""Factorizations as users call them. Signs of vectors are a library's own: what is compared does not depend on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.forms import Form, quiet
from tests.rows import Operand, floats
from tests.rows_factors import deficient, spread
from tests.rows_linalg import definite

FORMS: list[Form] = []


def form(name: str, call: Callable[..., Any], *operands: Operand, **options: Any) -> None:
    # PyTorch warns of its older names.
    FORMS.append(Form(name, quiet(call), operands, **{"tolerance": 1e-4, "double": 1e-9, **options}))


def _product(u: Any, s: Any, vh: Any) -> Any:
    """A function of U, S and V^T that their signs do not change."""
    return (u * (s * s).unsqueeze(-2)) @ vh


def _symmetric(a: Any) -> Any:
    return (a + a.mT) / 2


_square, _tall, _wide = spread(3, 3), spread(5, 3), spread(2, 3, 5)
for _how, _a in {"": _square, ":tall": _tall, ":wide batch": _wide}.items():
    form(f"linalg.svd{_how}", lambda t, a: (s := t.linalg.svd(a, full_matrices=False), _product(*s), s.S, s.U.abs())[1:], _a)
    form(f"linalg.svdvals{_how}", lambda t, a: t.linalg.svdvals(a), _a)
    form(f"svd{_how}", lambda t, a: (s := t.svd(a), _product(s.U, s.S, s.V.mT), s.V.abs())[1:], _a)
    form(f"Tensor.svd{_how}", lambda t, a: (s := a.svd(), _product(s.U, s.S, s.V.mT))[1:], _a)
    form(f"linalg.qr{_how}", lambda t, a: tuple(t.linalg.qr(a)), _a)
    form(f"linalg.qr{_how} r", lambda t, a: tuple(t.linalg.qr(a, "r")), _a, gradient=False)
    form(f"linalg.qr{_how} complete", lambda t, a: tuple(t.linalg.qr(a, mode="complete")), _a, gradient=_a is not _tall)
    form(f"qr{_how}", lambda t, a: tuple(t.qr(a)), _a)
    form(f"Tensor.qr{_how}", lambda t, a: a.qr(some=True).R, _a)
    form(f"linalg.pinv{_how}", lambda t, a: t.linalg.pinv(a), _a)
    form(f"pinverse{_how}", lambda t, a: t.pinverse(a), _a)
    form(f"Tensor.pinverse{_how}", lambda t, a: a.pinverse(), _a)
    form(f"linalg.matrix_rank{_how}", lambda t, a: t.linalg.matrix_rank(a), _a, gradient=False)
    form(f"linalg.lstsq{_how}", lambda t, a, b: t.linalg.lstsq(a, b).solution, _a, floats(*_a.shape[:-1], 2))
    form(f"linalg.cond{_how}", lambda t, a: (t.linalg.cond(a), t.linalg.cond(a, -2)), _a)
    for _p in (2, -2, "nuc"):
        form(f"linalg.matrix_norm{_how} {_p}", lambda t, a, p=_p: t.linalg.matrix_norm(a, p), _a)
for _p in (2, -2, "nuc"):
    form(f"linalg.matrix_norm:dims {_p}", lambda t, a, p=_p: t.linalg.matrix_norm(a, p, dim=(2, 0), keepdim=True),
         spread(3, 2, 4))
    form(f"linalg.norm:{_p}", lambda t, a, p=_p: t.linalg.norm(a, p), _tall)
form("norm:nuclear", lambda t, a: t.norm(a, "nuc"), _tall)
form("Tensor.norm:nuclear", lambda t, a: a.norm("nuc", dim=(2, 0), keepdim=True), spread(3, 2, 4))
for _p in ("fro", "nuc", 1, -1, float("inf"), -float("inf")):
    form(f"linalg.cond:{_p}", lambda t, a, p=_p: t.linalg.cond(a, p), _square, gradient=False)  # PyTorch's raises
form("linalg.svd:full", lambda t, a: (s := t.linalg.svd(a), s.S, s.U[:, :3].abs(), (s.U @ s.U.mT).detach())[1:], _tall)
form("linalg.svd:full and wide", lambda t, a: (s := t.linalg.svd(a), s.S, s.Vh[:, :3].abs(), (s.Vh @ s.Vh.mT).detach())[1:],
     _wide)
form("svd:without vectors", lambda t, a: tuple(t.svd(a, compute_uv=False)), _tall, gradient=False)
form("svd:full", lambda t, a: [x.abs() for x in t.svd(a, some=False)], _square)
form("linalg.eigh", lambda t, a: (e := t.linalg.eigh(_symmetric(a)), e.eigenvalues, e.eigenvectors.abs())[1:], spread(2, 3, 3))
for _half in ("L", "U", "l", "u"):
    form(f"linalg.eigvalsh:{_half}", lambda t, a, h=_half: t.linalg.eigvalsh(a, UPLO=h), definite(2, 3, 3), smooth=False)
form("linalg.pinv:hermitian", lambda t, a: t.linalg.pinv(_symmetric(a), hermitian=True), _square)
form("linalg.pinv:hermitian, all of it", lambda t, a: t.linalg.pinv(a, hermitian=True), definite(2, 3, 3), smooth=False)
for _given in ({}, {"keepdim": True}, {"dim": (0, 1)}):
    form(f"norm:nuc {[*_given]}", lambda t, a, given=_given: t.norm(a, "nuc", **given), _tall)
form("Tensor.norm:nuc", lambda t, a: a.norm("nuc", dim=(0, 2)), spread(3, 2, 4))
form("linalg.pinv:deficient", lambda t, a: t.linalg.pinv(a, atol=1e-3), deficient(5, 4), smooth=False)
form("linalg.matrix_rank:deficient", lambda t, a: t.linalg.matrix_rank(a), deficient(2, 5, 4), gradient=False)
form("linalg.pinv:older arguments", lambda t, a: (t.linalg.pinv(a, 0.3), t.linalg.pinv(a, rcond=0.3)), _tall, gradient=False)
form("linalg.matrix_rank:older arguments", lambda t, a: t.linalg.matrix_rank(a, 2.0), _tall, gradient=False)
form("linalg.matrix_rank:hermitian", lambda t, a: t.linalg.matrix_rank(a, hermitian=True), definite(4, 4), gradient=False)
form("linalg.matrix_rank:tolerances", lambda t, a: t.linalg.matrix_rank(a, atol=2.0, rtol=0.1), _tall, gradient=False)
form("linalg.lstsq:rank", lambda t, a, b: t.linalg.lstsq(a, b).rank, _tall, floats(5, 2), gradient=False)
form("linalg.lstsq:small values left out", lambda t, a, b: t.linalg.lstsq(a, b, rcond=0.3, driver="gelsd").solution,
     _tall, floats(5, 2), gradient=False)
form("logdet", lambda t, a: t.logdet(a), definite(2, 3, 3))
form("logdet:negative", lambda t, a: t.logdet(-a), definite(3, 3), gradient=False)
form("Tensor.logdet", lambda t, a: a.logdet(), definite(3, 3))
form("Tensor.cholesky", lambda t, a: a.cholesky(True), definite(3, 3), smooth=False)

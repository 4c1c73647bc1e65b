"""The error function and its complement on the CPU, and gelu by it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcore.devices.host.kernel import Array, horner, kernel, pieces, with_room

# erf(x) = x P(x^2) / Q(x^2) for |x| up to a limit, beyond which it is 1: P and Q for float32 and for float64, within 4e-9 and
# 3e-17. Least-squares fits, iterated on the denominator; those for float64 add positive terms only, of which none cancel.
_SHORT = (3.92, (
    1.128379180912975, 0.18465105309565888, 0.05426094204021602, 0.003828999409218896, 0.0003798603992574199,
    4.7047276154222255e-06, -1.3261204210327645e-08)[::-1], (
    1.0, 0.49697626441913156, 0.11374535487773631, 0.01542231626758328, 0.0013036694231784534, 6.329768638013669e-05)[::-1])
_LONG = (5.9, (
    1.1283791670955126, 0.21969867598373097, 0.06603907346858112, 0.006863985056309288, 0.0008534011880314047,
    5.665959452135009e-05, 3.885598449663333e-06, 1.6851568224277977e-07, 6.734212497233331e-09, 1.7119811353963586e-10,
    3.344028269961891e-12, 2.250714698471713e-14, 1.598110497345964e-17)[::-1], (
    1.0, 0.5280362154764349, 0.1345376768653153, 0.02193484292297938, 0.0025568149476312228, 0.00022524228395141537,
    1.5431168179155296e-05, 8.310545635641249e-07, 3.498605613116061e-08, 1.1198560847044766e-09, 2.5438533466187084e-11,
    3.3417009299885617e-13, 8.975518813006918e-16)[::-1])

# erf(x / sqrt 2) = tanh(x P(x^2)) within 6e-8, the precision of float32: a fit of the inverse, weighted by the slope of
# tanh. It takes half as many passes over memory as the rational function.
_INVERSE_TANH = (0.797884942, 0.0363330843, -3.25945799e-05, -5.53063972e-05, 3.96478997e-06, -1.32267779e-07,
                 1.75632348e-09)[::-1]

# Chebyshev coefficients in y = 2t - 1, t = 2 / (2 + z), of log(erfc(z) / t) + z^2 for z >= 0, computed to 40 digits.
_CHEBYSHEV = (
    -1.30265371978170943, 0.64196979235649026, 0.0194764732041858363, -0.00956151478680863165,
    -0.000946595344482036861, 0.000366839497852761447, 4.25233248069077768e-05, -2.02785781125342481e-05,
    -1.62429000464702077e-06, 1.3036558355805187e-06, 1.56264417220703717e-08, -8.52380959149304777e-08,
    6.52905443910247192e-09, 5.05934349554818285e-09, -9.91364156490099146e-10, -2.27365122295749481e-10,
    9.64679110223392124e-11, 2.39403808124895592e-12, -6.88602752511088114e-12, 8.94487926333401317e-13,
    3.13092140493678853e-13, -1.1270822375373606e-13, 3.81090245503978394e-16, 7.1060983121851931e-15,
    -1.5230293148083846e-15, -9.45734236196977218e-17, 1.21021796335676048e-16, -2.81643182158882184e-17)


def erf_piece(x: Array, out: Array, a: Array, b: Array, c: Array, d: Array) -> None:
    """erf of one piece; the others are temporaries of its length. ``out`` may be ``x``."""
    most, above, below = _SHORT if x.dtype.itemsize < 8 else _LONG
    np.clip(x, -most, most, out=a)
    np.multiply(a, a, b)
    horner(b, above, c)
    horner(b, below, d)
    np.true_divide(c, d, c)
    np.multiply(a, c, out)
    # Rounded, the quotient is a few last bits beyond 1.
    np.clip(out, -1, 1, out=out)


@kernel
def erf(x: Array, out: Array, workspace: Array) -> None:
    for xs, outs, *room in with_room(workspace, 4, x, out):
        erf_piece(xs, outs, *room)


_ROOT_HALF = math.sqrt(0.5)
_ROOT_2_OVER_PI = math.sqrt(2 / math.pi)


def _erf_of_root_half(x: Array, out: Array, room: list[Array]) -> None:
    """erf(x / sqrt 2), which is 2 Phi(x) - 1 for the normal distribution function Phi."""
    if x.dtype.itemsize == 8:
        np.multiply(x, _ROOT_HALF, out)
        erf_piece(out, out, *room)
        return
    square = room[0]
    np.multiply(x, x, square)
    horner(square, _INVERSE_TANH, out)
    np.multiply(out, x, out)
    np.tanh(out, out)


@kernel
def gelu(x: Array, out: Array, workspace: Array, *, tanh: bool = False) -> None:
    for xs, outs, t, *room in with_room(workspace, 5, x, out):
        _normal_cdf(xs, t, room, tanh)
        np.multiply(xs, t, outs)


def _normal_cdf(x: Array, out: Array, room: list[Array], tanh: bool) -> None:
    """The factor of x in gelu: the normal distribution function, or its approximation by tanh."""
    if tanh:
        # of sqrt(2 / pi) (x + 0.044715 x^3)
        np.multiply(x, x, out)
        np.multiply(out, 0.044715, out)
        np.add(out, 1, out)
        np.multiply(out, x, out)
        np.multiply(out, _ROOT_2_OVER_PI, out)
        np.tanh(out, out)
    else:
        _erf_of_root_half(x, out, room)
    np.multiply(out, 0.5, out)
    np.add(out, 0.5, out)


@kernel
def gelu_grad(dy: Array, x: Array, out: Array, workspace: Array, *, tanh: bool = False) -> None:
    for dys, xs, outs, t, s, *room in with_room(workspace, 6, dy, x, out):
        _normal_cdf(xs, t, room, tanh)
        _slope_from_cdf(xs, t, s, room, tanh)
        np.multiply(t, dys, outs)


def _slope_from_cdf(xs: Array, t: Array, s: Array, room: list[Array], tanh: bool) -> None:
    """Replace the factor ``t`` of x in gelu by the slope of gelu."""
    np.multiply(xs, xs, s)
    if tanh:
        # 1 - tanh^2 = 4 t (1 - t)
        np.multiply(s, 6 * 0.044715 * _ROOT_2_OVER_PI, s)
        np.add(s, 2 * _ROOT_2_OVER_PI, s)
        u = room[0]
        np.subtract(1, t, u)
        np.multiply(u, t, u)
        np.multiply(s, u, s)
        np.multiply(s, xs, s)
    else:
        np.multiply(s, -0.5, s)
        np.exp(s, s)
        np.multiply(s, xs, s)
        np.multiply(s, 1 / math.sqrt(2 * math.pi), s)
    np.add(t, s, t)


def gelu_with_grad(x: Array, out: Array, slopes: Array, *temporaries: Array, tanh: bool = False) -> None:
    """Write gelu to ``out``, which may be ``x``, and replace the cotangent in ``slopes`` by the gradient; six temporaries of a
    piece's length."""
    over = np.may_share_memory(x, out)
    for xs, outs, ds in pieces(x, out, slopes, length=temporaries[0].size):
        t, s, *room = (r[:xs.size] for r in temporaries)
        _normal_cdf(xs, t, room, tanh)
        # The slope is made of x, too, and leaves the last temporary alone.
        made = room[-1] if over else outs
        np.multiply(xs, t, made)
        _slope_from_cdf(xs, t, s, room, tanh)
        np.multiply(t, ds, ds)
        if over:
            np.copyto(outs, made)


def erfc(x: Array) -> Any:
    """Of a piece, in doubles."""
    found, z, t, y = np.empty((4, *x.shape))
    erfc_into(x, found, z, t, y, np.empty(x.shape, np.bool_))
    return found


def erfc_into(x: Array, out: Array, z: Array, t: Array, y: Array, mask: Array) -> None:
    """The same, in temporaries; ``out`` is of doubles, too."""
    np.copyto(z, x)
    np.abs(z, z)
    np.add(z, 2, t)
    np.divide(2, t, t)
    np.multiply(t, 2, y)
    np.subtract(y, 1, y)
    horner(y, _LOG_ERFC if x.itemsize == 8 else _LOG_ERFC_SHORT, out)
    np.multiply(z, z, z)
    np.subtract(out, z, out)
    np.exp(out, out)
    np.multiply(out, t, out)
    # Below 0, 2 less the tail: as |2 b - tail| with b = 1 there and 0 elsewhere.
    np.less(x, 0, mask)
    np.multiply(mask, 2.0, t)
    np.subtract(t, out, out)
    np.abs(out, out)


# log(erfc(z) / t) + z^2 by powers of y = 2t - 1; twelve terms are enough for float32.
_SERIES = (_CHEBYSHEV[0] / 2, *_CHEBYSHEV[1:])
_LOG_ERFC = np.polynomial.chebyshev.cheb2poly(_SERIES).tolist()[::-1]
_LOG_ERFC_SHORT = np.polynomial.chebyshev.cheb2poly(_SERIES[:12]).tolist()[::-1]

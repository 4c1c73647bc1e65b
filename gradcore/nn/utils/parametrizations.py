"""PyTorch's parametrizations: weight normalization, spectral normalization and orthogonal matrices."""

from __future__ import annotations

from typing import Any

from gradcore.engine.autocast import left_alone
from gradcore.engine.modes import no_grad
from gradcore.functional import eye, where
from gradcore.functional.linalg import matrix_exp, qr, solve
from gradcore.functional.padding import pad
from gradcore.functional.similarity import normalize
from gradcore.nn.module import Module
from gradcore.nn.utils.parametrize import is_parametrized, register_parametrization
from gradcore.nn.utils.spectral_norm import default_dim, directions, divided, iterate, matrix_of
from gradcore.nn.utils.weight_norm import length_of

Tensor = Any

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]


class _WeightNorm(Module):
    """v * g / ||v||, where g is ``original0`` and v is ``original1``."""

    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, g: Tensor, v: Tensor) -> Tensor:
        return v * (g / length_of(v, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return length_of(weight, self.dim), weight.clone()


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Parametrize a weight by the norm of each slice of ``dim`` (None: of the whole) and a direction. arXiv:1602.07868.

    The module loads state dicts of the older :func:`gradcore.nn.utils.weight_norm`, too. Undone by
    :func:`~gradcore.nn.utils.parametrize.remove_parametrizations`. Raises ValueError if ``name`` is not a parameter.
    """
    def take_older_names(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        older = [f"{prefix}{name}_{part}" for part in "gv"]
        # Not once it is removed: the older one may have come in its place.
        if is_parametrized(module, name) and all(key in state_dict for key in older):
            for k, key in enumerate(older):
                state_dict[f"{prefix}parametrizations.{name}.original{k}"] = state_dict.pop(key)

    register_parametrization(module, name, _WeightNorm(dim))
    module.register_load_state_dict_pre_hook(take_older_names)
    return module


class _SpectralNorm(Module):
    """A weight divided by its largest singular value, estimated by the vectors ``_u`` and ``_v``, updated in training."""

    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        ndim = weight.spec.ndim
        if not -ndim <= dim < ndim:
            raise IndexError(f"Dimension out of range (expected to be in range of [-{ndim}, {ndim - 1}] but got {dim})")
        if n_power_iterations <= 0:
            raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
        self.dim, self.eps, self.n_power_iterations = dim % ndim, eps, n_power_iterations
        if ndim > 1:
            with no_grad():
                matrix = matrix_of(weight, self.dim)
                left, right = directions(matrix, eps)
            self.register_buffer("_u", left)
            self.register_buffer("_v", right)
            iterate(matrix, left, right, 15, eps, False)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.spec.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = matrix_of(weight, self.dim)
        if self.training:
            iterate(matrix, self._u, self._v, self.n_power_iterations, self.eps, False)
        return divided(weight, matrix, self._u, self._v)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight


def spectral_norm(module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
                  dim: int | None = None) -> Any:
    """Divide a weight by its largest singular value, found by power iteration. Miyato et al., arXiv:1802.05957.

    The weight's slices of ``dim`` are the rows of a matrix. Whenever the weight is computed in training, ``n_power_iterations``
    continue from the last vectors. Undone by :func:`~gradcore.nn.utils.parametrize.remove_parametrizations`.
    Raises ValueError if ``name`` is not a parameter or for less than one iteration, IndexError for a ``dim`` out of range.
    """
    weight = module._parameters.get(name)
    if weight is None:
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    return register_parametrization(module, name, _SpectralNorm(
        weight, n_power_iterations, default_dim(module) if dim is None else dim, eps))


# -- orthogonal matrices -------------------------------------------------------------------------------------------------


def _skew(x: Tensor) -> Tensor:
    """A skew-symmetric matrix [..., n, n] of the lower triangle of x [..., n, k]."""
    n, k = x.spec.shape[-2:]
    lower = pad(x.tril(), (0, n - k))
    return lower - lower.mT


def _exponential(x: Tensor) -> Tensor:
    return matrix_exp(_skew(x))[..., :x.spec.shape[-1]]


def _cayley(x: Tensor) -> Tensor:
    half = _skew(x) / 2
    one = eye(half.spec.shape[-1], dtype=half.dtype, device=half.device)
    return solve(one - half, one + half)[..., :x.spec.shape[-1]]


def _reflections(x: Tensor) -> Tensor:
    """The product of reflections by the columns of x below its diagonal, of which each has a 1, times the diagonal's signs."""
    n, k = x.spec.shape[-2:]
    found = eye(n, k, dtype=x.dtype, device=x.device)
    columns = x.tril(-1) + found
    for j in reversed(range(k)):
        column = columns[..., j:j + 1]
        found = found - column * (2 / (column * column).sum((-2, -1), keepdim=True)) * (column.mT @ found)
    return found * x.detach().diagonal(dim1=-2, dim2=-1).trunc().unsqueeze(-2)


_MAPS = {"matrix_exp": _exponential, "cayley": _cayley, "householder": _reflections}


class _Orthogonal(Module):
    """``base``, an orthogonal matrix, times the orthonormal columns that a map makes of the original; wide ones transposed."""

    base: Tensor

    def __init__(self, orthogonal_map: str) -> None:
        super().__init__()
        self.orthogonal_map = orthogonal_map
        self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.spec.shape[-2] < x.spec.shape[-1]
        # As in PyTorch, autocast narrows the last product alone.
        with left_alone():
            found = _MAPS[self.orthogonal_map](x.mT if wide else x)
        found = self.base @ found
        return found.mT if wide else found

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The original of which each map makes ones on the diagonal: the weight's orthogonal factor is in ``base``."""
        rows, columns = weight.spec.shape[-2:]
        q, r = qr(weight.mT if rows < columns else weight, "complete")
        # The one factor with a positive diagonal of R: of an orthogonal weight, the weight itself.
        signs = where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(q.dtype)
        self.base = q * pad(signs, (0, abs(rows - columns)), value=1.0).unsqueeze(-2)
        return -eye(rows, columns, dtype=weight.dtype, device=weight.device).expand(weight.shape)


def orthogonal(module: Any, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True) -> Any:
    """Parametrize a weight [..., n, k] so that its columns are orthonormal, or its rows if n < k. It begins as the orthogonal
    factor of what it was.

    ``orthogonal_map`` is "matrix_exp" (the default of square matrices), "cayley" or "householder" (that of others, of k steps).
    Undone by :func:`~gradcore.nn.utils.parametrize.remove_parametrizations`. Raises ValueError if ``name`` is not a parameter
    of at least two dimensions and for another map, NotImplementedError without ``use_trivialization``.
    """
    weight = getattr(module, name, None)
    if weight is None:
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    if weight.ndim < 2:
        raise ValueError(f"Expected a matrix or batch of matrices. Got a tensor of {weight.ndim} dimensions.")
    if orthogonal_map is None:
        orthogonal_map = "matrix_exp" if weight.shape[-2] == weight.shape[-1] else "householder"
    if orthogonal_map not in _MAPS:
        raise ValueError(f'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: {orthogonal_map}')
    if not use_trivialization:
        raise NotImplementedError("orthogonal(use_trivialization=False) is not implemented by gradcore: the weight would not "
                                  "begin as it is; leave it out")
    return register_parametrization(module, name, _Orthogonal(orthogonal_map))

"""PyTorch's parametrizations: weight normalization and spectral normalization."""

from __future__ import annotations

from typing import Any

from gradcore.engine.modes import no_grad
from gradcore.functional.similarity import normalize
from gradcore.nn.module import Module
from gradcore.nn.utils.parametrize import register_parametrization
from gradcore.nn.utils.spectral_norm import default_dim, directions, divided, iterate, matrix_of
from gradcore.nn.utils.weight_norm import length_of

Tensor = Any

__all__ = ["spectral_norm", "weight_norm"]


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

    Undone by :func:`~gradcore.nn.utils.parametrize.remove_parametrizations`. Raises ValueError if ``name`` is not a parameter.
    """
    return register_parametrization(module, name, _WeightNorm(dim))


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

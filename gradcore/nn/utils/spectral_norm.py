"""Spectral normalization by a hook, and the power iteration behind it. Miyato et al., arXiv:1802.05957."""

from __future__ import annotations

from typing import Any

from gradcore import functional
from gradcore._random import randn
from gradcore.engine.modes import no_grad
from gradcore.functional.similarity import normalize
from gradcore.nn.hooks import key_of
from gradcore.nn.utils.weight_norm import made_plain
from gradcore.ops import movement

Tensor = Any


def default_dim(module: Any) -> int:
    """The output dimension of a module's weight."""
    from gradcore.nn.convolution import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d

    return 1 if isinstance(module, (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)) else 0


def matrix_of(weight: Tensor, dim: int) -> Tensor:
    """A weight as a matrix, whose rows are its slices along ``dim``."""
    return functional.flatten(movement.permute(weight, dims=(dim, *[d for d in range(weight.spec.ndim) if d != dim])), 1)


def directions(matrix: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Random unit vectors, the initial left and right singular vectors of a matrix."""
    made = (randn(n, dtype=matrix.spec.dtype, device=matrix.storage.device) for n in matrix.spec.shape)
    left, right = (normalize(x, dim=0, eps=eps) for x in made)
    return left, right


@no_grad()
def iterate(matrix: Tensor, u: Tensor, v: Tensor, times: int, eps: float, right_first: bool) -> None:
    """Power iteration: update two vectors, in place, towards the first singular vectors of a matrix."""
    for _ in range(times):
        for right in (right_first, not right_first):
            if right:
                v.copy_(normalize(functional.mv(matrix.T, u), dim=0, eps=eps))
            else:
                u.copy_(normalize(functional.mv(matrix, v), dim=0, eps=eps))


def divided(weight: Tensor, matrix: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The weight divided by u^T matrix v, the estimate of the largest singular value."""
    # Copies, since the next call changes the vectors in place, perhaps before this call's backward.
    return weight / functional.dot(u.clone(), functional.mv(matrix, v.clone()))


class SpectralNorm:
    """The hook that computes the weight before each call."""

    def __init__(self, name: str, times: int, dim: int, eps: float) -> None:
        self.name, self.times, self.dim, self.eps = name, times, dim, eps

    def weight(self, module: Any, times: int = 0) -> Tensor:
        weight, u, v = (getattr(module, f"{self.name}_{part}") for part in ("orig", "u", "v"))
        matrix = matrix_of(weight, self.dim)
        iterate(matrix, u, v, times, self.eps, True)
        return divided(weight, matrix, u, v)

    def __call__(self, module: Any, args: Any) -> None:
        module.__dict__[self.name] = self.weight(module, self.times if module.training else 0)


def spectral_norm(module: Any, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
                  dim: int | None = None) -> Any:
    """Divide a weight by its largest singular value before each call; the parameter becomes ``name_orig``.

    Each call in training runs ``n_power_iterations`` of power iteration on the buffers ``name_u`` and ``name_v``. The weight's
    slices of ``dim`` are the rows of a matrix. Raises ValueError for less than one iteration, RuntimeError if it is already
    applied.
    """
    if n_power_iterations <= 0:
        raise ValueError("Expected n_power_iterations to be positive, but got n_power_iterations="
                         f"{n_power_iterations}")
    if key_of(module, SpectralNorm, name) is not None:
        raise RuntimeError(f"Cannot register two spectral_norm hooks on the same parameter {name}")
    weight = module.get_parameter(name)
    hook = SpectralNorm(name, n_power_iterations, default_dim(module) if dim is None else dim % weight.spec.ndim, eps)
    with no_grad():
        left, right = directions(matrix_of(weight, hook.dim), eps)
    delattr(module, name)
    module.register_parameter(f"{name}_orig", weight)
    module.register_buffer(f"{name}_u", left)
    module.register_buffer(f"{name}_v", right)
    module.__dict__[name] = weight.detach()
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: Any, name: str = "weight") -> Any:
    """Make the weight a plain parameter again. Raises ValueError if :func:`spectral_norm` was not applied."""
    return made_plain(module, SpectralNorm, name, "spectral_norm", "orig", "u", "v")

"""The layers ``Embedding`` and ``EmbeddingBag``."""

from __future__ import annotations

from typing import Any

from gradcore._random import normal_
from gradcore.arguments import refusal
from gradcore.engine.modes import no_grad
from gradcore.functional import empty
from gradcore.functional.embeddings import embedding
from gradcore.nn import functional as F
from gradcore.nn.module import Module, unusual
from gradcore.nn.parameter import Parameter

Tensor = Any


class _Table(Module):
    """Base of both layers: a table, and which of its rows are read how."""

    weight: Parameter

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None,
                 max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
                 sparse: bool = False, _weight: Tensor | None = None, _freeze: bool = False, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        if sparse:
            raise refusal(type(self).__name__, "sparse")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"Padding_idx must be within num_embeddings, but got {padding_idx} and {num_embeddings}")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        if _weight is None:
            self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype), not _freeze)
            self.reset_parameters()
        elif _weight.spec.shape != (num_embeddings, embedding_dim):
            raise ValueError(f"Shape of weight does not match num_embeddings and embedding_dim: {list(_weight.spec.shape)} for "
                             f"{num_embeddings} and {embedding_dim}")
        else:
            self.weight = Parameter(_weight, not _freeze)

    def reset_parameters(self) -> None:
        """Draw the table from N(0, 1), as in PyTorch, and zero the row ``padding_idx``."""
        with no_grad():
            normal_(self.weight)
        self._fill_padding_idx_with_zero()

    def _fill_padding_idx_with_zero(self) -> None:
        """By PyTorch's name, which subclasses call that draw the table otherwise."""
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].fill_(0)


def _size_of(table: Tensor) -> tuple[int, int]:
    if table.spec.ndim != 2:
        raise ValueError("Embeddings parameter is expected to be 2-dimensional")
    rows, columns = table.spec.shape
    return rows, columns


class Embedding(_Table):
    """Rows of a table [num_embeddings, embedding_dim], by index. The row ``padding_idx`` starts as 0 and gets no gradient."""

    def forward(self, input: Tensor) -> Tensor:
        return embedding(input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None,
                        max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
                        sparse: bool = False) -> Embedding:
        """A layer with a given table [rows, columns], which is trained only with ``freeze=False``."""
        return cls(*_size_of(embeddings), padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, embeddings, freeze)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}" + unusual(
            self, padding_idx=None, max_norm=None, norm_type=2, scale_grad_by_freq=False)


class EmbeddingBag(_Table):
    """Sums, means or maxima of bags of rows of a table [num_embeddings, embedding_dim].

    See :func:`gradcore.nn.functional.embedding_bag`.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
                 scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, _weight: Tensor | None = None,
                 include_last_offset: bool = False, padding_idx: int | None = None, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__(num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight,
                         False, device, dtype)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode,
                               self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, max_norm: float | None = None, norm_type: float = 2.0,
                        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
                        include_last_offset: bool = False, padding_idx: int | None = None) -> EmbeddingBag:
        """A layer with a given table [rows, columns], which is trained only with ``freeze=False``."""
        made = cls(*_size_of(embeddings), max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings,
                   include_last_offset, padding_idx)
        made.weight.requires_grad = not freeze
        return made

    def extra_repr(self) -> str:
        return (f"{self.num_embeddings}, {self.embedding_dim}"
                + unusual(self, max_norm=None, norm_type=2, scale_grad_by_freq=False)
                + f", mode={self.mode!r}" + unusual(self, padding_idx=None))

"""The layers ``EmbeddingBag`` and ``Bilinear``."""

from __future__ import annotations

import math
from typing import Any

from gradcore._random import normal_
from gradcore.arguments import refusal
from gradcore.engine.modes import no_grad
from gradcore.functional import empty
from gradcore.nn import functional as F
from gradcore.nn import init
from gradcore.nn.module import Module
from gradcore.nn.parameter import Parameter

Tensor = Any


class EmbeddingBag(Module):
    """Sums, means or maxima of bags of rows of a table [num_embeddings, embedding_dim].

    See :func:`gradcore.nn.functional.embedding_bag`.
    """

    weight: Parameter

    def __init__(self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
                 scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, _weight: Tensor | None = None,
                 include_last_offset: bool = False, padding_idx: int | None = None, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        if sparse:
            raise refusal("EmbeddingBag", "sparse")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"padding_idx must be within num_embeddings, but got {padding_idx} and {num_embeddings}")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.mode = mode
        self.sparse = sparse
        self.include_last_offset = include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if _weight is None:
            self.weight = Parameter(empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
            self.reset_parameters()
        elif tuple(_weight.spec.shape) != (num_embeddings, embedding_dim):
            raise ValueError(f"Shape of weight does not match num_embeddings and embedding_dim: {list(_weight.spec.shape)} for "
                             f"{num_embeddings} and {embedding_dim}")
        else:
            self.weight = Parameter(_weight)

    def reset_parameters(self) -> None:
        """Draw the table from N(0, 1), as in PyTorch, and zero the row ``padding_idx``."""
        with no_grad():
            normal_(self.weight)
            if self.padding_idx is not None:
                self.weight[self.padding_idx].fill_(0)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode,
                               self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, max_norm: float | None = None, norm_type: float = 2.0,
                        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
                        include_last_offset: bool = False, padding_idx: int | None = None) -> EmbeddingBag:
        """A layer with a given table [rows, columns], which is trained only with ``freeze=False``."""
        if embeddings.spec.ndim != 2:
            raise ValueError("Embeddings parameter is expected to be 2-dimensional")
        rows, columns = embeddings.spec.shape
        made = cls(rows, columns, max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings, include_last_offset,
                   padding_idx)
        made.weight.requires_grad = not freeze
        return made

    def extra_repr(self) -> str:
        usual = {"max_norm": None, "norm_type": 2, "scale_grad_by_freq": False, "mode": "", "padding_idx": None}
        return ", ".join([f"{self.num_embeddings}, {self.embedding_dim}", *(
            f"{name}={getattr(self, name)!r}" for name, value in usual.items() if getattr(self, name) != value)])


class Bilinear(Module):
    """x1^T W_k x2 + b_k: weight [out_features, in1_features, in2_features], bias [out_features]."""

    weight: Parameter
    bias: Parameter | None

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got {in1_features}")
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        self.weight = Parameter(empty(out_features, in1_features, in2_features, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias uniformly in +-1/sqrt(in1_features), as in PyTorch."""
        bound = 1 / math.sqrt(self.in1_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}")

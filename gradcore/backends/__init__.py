"""PyTorch's switches of what it computes with.

``cuda.matmul.allow_tf32`` is another name for :func:`gradcore.set_float32_matmul_precision`; with ``cudnn.allow_tf32 = False``
convolutions do not follow it. The other switches of ``cudnn`` change nothing.
"""

from __future__ import annotations

from gradcore.backends import cuda, cudnn, mps

__all__ = ["cuda", "cudnn", "mps"]

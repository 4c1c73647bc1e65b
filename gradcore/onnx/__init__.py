"""Export of a forward pass to ONNX, for other runtimes. It needs the package ``onnx``."""

from gradcore.onnx._export import export

__all__ = ["export", "is_in_onnx_export"]


def is_in_onnx_export() -> bool:
    """Whether the caller runs to be exported: no, as what is exported is a recorded graph."""
    return False

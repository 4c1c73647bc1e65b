"""Export of a forward pass to ONNX, for other runtimes. It needs the package ``onnx``."""

from gradcore.onnx._export import export

__all__ = ["export"]

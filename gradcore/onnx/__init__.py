"""Programs for other runtimes: a forward run as a file of ONNX. Writing one takes the package ``onnx``."""

from gradcore.onnx._export import export

__all__ = ["export"]

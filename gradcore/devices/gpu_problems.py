"""Matrix products as libraries describe them: layouts and dtypes of the operands, and the epilogue of the launch."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from gradcore.devices.precision import get_float32_matmul_precision

#: cudaDataType of each kind of element.
DATA = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77  # cublasComputeType_t
#: What may follow a product in the same launch, and cuBLASLt's name for it. The vector has an element for each row of the
#: product as cuBLAS sees it (``bias``), or receives the sums of ``y`` over the inner dimension (``bias_gradient``). cuBLASLt's
#: GELU is none of them: its tanh is an approximation of its own, so a replay would have other bits than the op.
EPILOGUES = {"": "DEFAULT", "bias": "BIAS", "relu_bias": "RELU_BIAS", "bias_gradient": "BGRADB"}
#: What a library that cannot do one of them is asked for in its place; what is left out is the caller's to do.
INSTEAD = {"relu_bias": "bias", "bias": "", "bias_gradient": ""}
#: Bytes that the vector's address has to be a multiple of.
VECTOR_ALIGNMENT = 16
# The factors are read from host memory while a product is put on its stream, so they live as long as the process.
_NUMBERS = {kind: np.array((1, 0, np.nan), np.float64 if kind == "float64" else np.float32) for kind in DATA}
#: Where one, zero and NaN are, by the kind of the elements: halves are multiplied in single precision.
FACTORS = {kind: tuple(numbers.ctypes.data + k * numbers.itemsize for k in range(3)) for kind, numbers in _NUMBERS.items()}


class Matrix(NamedTuple):
    """How a matrix, or each of a batch, lies: does cuBLAS, which reads column by column, take it transposed; elements from
    one column to the next and from one matrix to the next; bytes, up to 256, that all of their addresses are multiples of."""

    transposed: int
    leading: int
    step: int
    aligned: int


class Problem(NamedTuple):
    """out = x y for a batch of matrices of m rows and n columns, with k products summed; ``then`` is a key of EPILOGUES."""

    kind: str
    m: int
    n: int
    k: int
    batch: int
    x: Matrix
    y: Matrix
    out: Matrix
    then: str = ""


class Library(Protocol):
    """What gradcore asks of a library."""

    #: Memory that it takes where no pool of ours sees it, and why; "" for none.
    unseen: str

    def plan(self, problem: Problem) -> Any:
        """What :meth:`run` takes, None if the library has no way to do it."""
        ...

    def exact(self, plan: Any, x: int, y: int, out: int, vector: int) -> bool:
        """Does what follows the product give what kernels of ours would? May write to ``out``, and wait for the stream."""
        ...

    def run(self, plan: Any, x: int, y: int, out: int, vector: int) -> None:
        """Put the product of what lies at these addresses on the current stream."""
        ...


def alignment(address: int, step: int) -> int:
    """Bytes, up to 256, that ``address`` and every multiple of ``step`` bytes behind it are multiples of."""
    both = address | step | 256
    return both & -both


def compute_of(kind: str) -> int:
    """The cublasComputeType_t of products of one kind: TF32 only where it was asked for."""
    if kind == "float64":
        return COMPUTE_64F
    return COMPUTE_32F_FAST_TF32 if kind == "float32" and get_float32_matmul_precision() != "highest" else COMPUTE_32F

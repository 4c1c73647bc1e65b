"""Descriptions of matrix products for libraries: layouts and dtypes of the operands, and the epilogue of the launch."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from gradcore.devices.precision import rounded

#: cudaDataType of each kind of element.
DATA = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77  # cublasComputeType_t
#: Epilogues, which follow a product in the same launch, with cuBLASLt's names. The vector has an element for each row of the
#: product as cuBLAS sees it (``bias``), or receives the sums of ``y`` over the inner dimension (``bias_gradient``). cuBLASLt's
#: GELU is not among them: it approximates tanh in its own way, so a replay would have other bits than the op.
EPILOGUES = {"": "DEFAULT", "bias": "BIAS", "relu_bias": "RELU_BIAS", "bias_gradient": "BGRADB"}
#: What only gradcore's own kernel does: 0 where the vector, here a matrix like the result, is at most 0.
RELU_GRADIENT = "relu_gradient"
#: The epilogue to try next if a library lacks one; the caller does what is left out.
INSTEAD = {"relu_bias": "bias", "bias": "", "bias_gradient": ""}
#: How many algorithms a library is asked for.
ASKED = 8
#: The most products in a sum that is not split, and the fewest in a share of one that is.
_WHOLE, _SHARE = 256, 16
#: The vector's address must be a multiple of so many bytes.
VECTOR_ALIGNMENT = 16
# Libraries read the factors from host memory during a launch, so these live as long as the process.
_NUMBERS = {kind: np.array((1, 0, np.nan), np.float64 if kind == "float64" else np.float32) for kind in DATA}
#: Addresses of one, zero and NaN, by dtype of the elements; for 16-bit floats the factors are float32.
FACTORS = {kind: tuple(numbers.ctypes.data + k * numbers.itemsize for k in range(3)) for kind, numbers in _NUMBERS.items()}


class Matrix(NamedTuple):
    """The layout of a matrix, or of each of a batch, for column-major cuBLAS: is it transposed; elements from one column to
    the next, and from one matrix to the next; and the alignment of all of them, up to 256 bytes."""

    transposed: int
    leading: int
    step: int
    aligned: int


class Problem(NamedTuple):
    """out = x y, or out += x y if ``added``, for a batch of matrices of m rows and n columns, with k products summed in the
    precision of the computation; ``then`` is a key of EPILOGUES, or RELU_GRADIENT."""

    kind: str
    m: int
    n: int
    k: int
    batch: int
    x: Matrix
    y: Matrix
    out: Matrix
    then: str = ""
    added: bool = False


class Library(Protocol):
    """The interface of a library of matrix products."""

    #: A description of memory that it allocates outside gradcore's pools; "" for none.
    unseen: str

    def plan(self, problem: Problem) -> Any:
        """A plan for :meth:`run`, None if the library cannot compute the problem."""
        ...

    def exact(self, plan: Any, x: int, y: int, out: int, vector: int) -> bool:
        """Does the epilogue give the same values as gradcore's kernels? May write to ``out``, and wait for the stream."""
        ...

    def run(self, plan: Any, x: int, y: int, out: int, vector: int) -> None:
        """Launch the product of the matrices at these addresses on the current stream."""
        ...


def alignment(address: int, step: int) -> int:
    """The alignment, up to 256 bytes, of ``address`` plus any multiple of ``step`` bytes."""
    both = address | step | 256
    return both & -both


def compute_of(kind: str) -> int:
    """The cublasComputeType_t for a dtype: TF32 only if the precision of float32 products allows it."""
    if kind == "float64":
        return COMPUTE_64F
    return COMPUTE_32F_FAST_TF32 if kind == "float32" and rounded()[0] else COMPUTE_32F


def choose(k: int, shares: list[int]) -> int:
    """Which to take of the algorithms that cuBLASLt offers, best first, by the number of shares into which each splits the sums
    of ``k`` products; a second kernel adds up the shares.

    To fill the device, its heuristic splits short sums, too, which costs more than it gains. On an H200 with cuBLASLt 13.1, a
    product of 128 x 64 elements with k = 64 took 9.5 us in 132 shares and 3.4 in one, with k = 128 9.9 and 4.6, and one of
    128 x 10 elements with k = 512 took 53 us in 264 shares and 7.1 in 33; that of 128 x 128 with k = 512 took 8.1 us in 8
    shares and 13.0 in one.
    """
    most = 1 if k <= _WHOLE else k // _SHARE
    return next((i for i, count in enumerate(shares) if count <= most), shares.index(min(shares)))

"""cuBLAS and cuBLASLt as documented, over host memory: a product is computed as its descriptors say.

Descriptors are as strict as the library's: the size of an attribute, a leading dimension that is too small, an address that is
less aligned than promised, or a workspace that is too small is an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

#: cudaDataType, and cublasComputeType_t with the type of the factors.
STORED = {0: np.float32, 1: np.float64, 2: np.float16, 14: np.uint16}
FACTORS = {68: np.float32, 77: np.float32, 70: np.float64}


class MatmulDescAttribute(IntEnum):
    TRANSA, TRANSB, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8


class MatrixLayoutAttribute(IntEnum):
    BATCH_COUNT, STRIDED_BATCH_OFFSET = 5, 6


class MatmulPreferenceAttribute(IntEnum):
    MAX_WORKSPACE_BYTES = 1
    MIN_ALIGNMENT_A_BYTES, MIN_ALIGNMENT_B_BYTES, MIN_ALIGNMENT_C_BYTES, MIN_ALIGNMENT_D_BYTES = 5, 6, 7, 8


class Epilogue(IntEnum):
    DEFAULT, BIAS, RELU_BIAS, BGRADB = 1, 4, 6, 512


_P = MatmulPreferenceAttribute
#: By name, since members of different enumerations compare equal if their numbers are.
DTYPES: dict[str, Any] = {
    "TRANSA": np.int32, "TRANSB": np.int32, "EPILOGUE": np.uint32, "BIAS_POINTER": np.int64, "BATCH_COUNT": np.int32,
    "STRIDED_BATCH_OFFSET": np.int64, "MAX_WORKSPACE_BYTES": np.uint64, "MIN_ALIGNMENT_A_BYTES": np.uint32,
    "MIN_ALIGNMENT_B_BYTES": np.uint32, "MIN_ALIGNMENT_C_BYTES": np.uint32, "MIN_ALIGNMENT_D_BYTES": np.uint32,
    "SPLITK_NUM": np.int32}


def narrowed(x: Any) -> np.ndarray:
    """Single precision as the bits of bfloat16, to nearest, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widened(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def tf32(x: np.ndarray) -> np.ndarray:
    """Single precision with 10 bits of mantissa beside the leading one."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def at(address: int, dtype: Any, count: int = 1) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address), dtype)


def columns(dtype: Any, address: int, leading: int, rows: int, count: int) -> np.ndarray:
    """A column-major matrix."""
    assert leading >= max(rows, 1), "cuBLAS: the leading dimension is less than the rows"
    size = np.dtype(dtype).itemsize
    flat = at(address, dtype, (count - 1) * leading + rows)
    return np.lib.stride_tricks.as_strided(flat, (rows, count), (size, leading * size))


def _read(data: int, compute: int, matrix: np.ndarray, transposed: int) -> np.ndarray:
    wide = widened(matrix) if data == 14 else matrix.astype(FACTORS[compute])
    wide = tf32(np.ascontiguousarray(wide)) if compute == 77 else wide
    return wide.T if transposed else wide


def _write(data: int, matrix: np.ndarray, values: np.ndarray) -> None:
    matrix[...] = narrowed(values) if data == 14 else values


def gemm(data: int, compute: int, ta: int, tb: int, sizes: tuple[int, int, int], a: int, lda: int, b: int, ldb: int, c: int,
         ldc: int, then: int = 1, vector: int = 0, factor: float = 1.0, larger: Any = np.maximum, kept: float = 0.0) -> None:
    """One product, with a bias, an activation or the bias's gradient in the same launch. ``larger`` is relu's maximum, ``kept``
    the factor, 0 or 1, for what the result holds."""
    m, n, k = sizes
    stored = STORED[data]
    x = _read(data, compute, columns(stored, a, lda, k if ta else m, m if ta else k), ta)
    y = _read(data, compute, columns(stored, b, ldb, n if tb else k, k if tb else n), tb)
    made = x @ y if factor == 1 else x @ y * np.array(factor, x.dtype)
    if kept:
        made = made + _read(data, 68 if compute == 77 else compute, columns(stored, c, ldc, m, n), 0)
    if then in (Epilogue.BIAS, Epilogue.RELU_BIAS):
        made = made + _read(data, 68 if compute == 77 else compute, at(vector, stored, m)[:, None], 0)
    if then == Epilogue.RELU_BIAS:
        made = larger(made, 0)
    if then == Epilogue.BGRADB:
        _write(data, at(vector, stored, n), y.sum(0))
    _write(data, columns(stored, c, ldc, m, n), made)


class cuBLASLtError(Exception):
    def __init__(self, text: str, status: int = 15) -> None:
        super().__init__(text)
        self.status = status


class MatmulAlgoConfigAttribute(IntEnum):
    SPLITK_NUM = 2


class Result:
    """A heuristic's results, 96 bytes each: the algorithm's 64 bytes, the bytes of workspace, a status, and more."""

    def __init__(self, size: int) -> None:
        self._set(np.ones((size, 12), np.uint64))

    def _set(self, rows: np.ndarray) -> None:
        self.rows = rows
        self.words = rows[0]
        self.ptr = rows.ctypes.data

    def __getitem__(self, k: int) -> Result:
        one = Result.__new__(Result)
        one._set(self.rows[k:k + 1])
        return one

    @property
    def workspace_size(self) -> int:
        return int(self.words[8])

    @property
    def state(self) -> int:
        return int(self.words[9])


class FakeLt:
    """``nvmath.bindings.cublasLt``. ``without`` are epilogues and ways to compute that it has no algorithm for; ``larger`` is
    its relu's maximum; ``offered`` are the numbers of shares of the algorithms that its heuristic finds, best first."""

    MatmulAlgoConfigAttribute = MatmulAlgoConfigAttribute
    matmul_heuristic_result_dtype = np.dtype((np.uint64, 12))
    MatmulDescAttribute, MatrixLayoutAttribute = MatmulDescAttribute, MatrixLayoutAttribute
    MatmulPreferenceAttribute, Epilogue = MatmulPreferenceAttribute, Epilogue
    MatmulHeuristicResult, cuBLASLtError = Result, cuBLASLtError

    def __init__(self, runs: Callable[[], bool] = lambda: True) -> None:
        self.runs = runs
        self.without: set[int] = set()
        self.larger: Any = np.maximum
        self.offered = [1]
        #: By handle: what was created, and the attributes that were set.
        self.made: dict[int, dict[Any, Any]] = {}
        self.algorithms: dict[int, dict[Any, Any]] = {}
        self.calls: list[dict[str, Any]] = []
        self.planned = 0
        self.last = 0

    def _new(self, **fields: Any) -> int:
        self.last += 1
        self.made[self.last] = fields
        return self.last

    def create(self) -> int:
        return self._new(what="handle")

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        assert STORED[scale] is FACTORS[compute]
        return self._new(what="desc", compute=compute)

    def matrix_layout_create(self, data: int, rows: int, count: int, leading: int) -> int:
        assert leading >= rows > 0 < count
        return self._new(what="layout", data=data, rows=rows, columns=count, leading=leading)

    def matmul_preference_create(self) -> int:
        return self._new(what="preference")

    def _destroy(self, handle: int) -> None:
        del self.made[handle]

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    def _set(self, handle: int, attribute: IntEnum, address: int, nbytes: int) -> None:
        dtype = np.dtype(DTYPES[attribute.name])
        assert nbytes == dtype.itemsize
        self.made[handle][attribute] = int(at(address, dtype)[0])

    matmul_desc_set_attribute = matrix_layout_set_attribute = matmul_preference_set_attribute = _set

    def _dtype(self, attribute: IntEnum) -> Any:
        return DTYPES[attribute.name]

    get_matmul_desc_attribute_dtype = get_matrix_layout_attribute_dtype = get_matmul_preference_attribute_dtype = _dtype
    get_matmul_algo_config_attribute_dtype = _dtype

    def matmul_algo_get_heuristic(self, handle: int, desc: int, a: int, b: int, c: int, d: int, preference: int, count: int,
                                  result: int, found: int) -> None:
        assert self.made[handle]["what"] == "handle"
        assert count >= len(self.offered)
        how = self.made[desc]
        if how.get(MatmulDescAttribute.EPILOGUE, 1) in self.without:
            raise cuBLASLtError("not supported")
        assert how.get(MatmulDescAttribute.BIAS_POINTER) or how.get(MatmulDescAttribute.EPILOGUE, 1) == 1
        self.planned += 1
        pointer = how.get(MatmulDescAttribute.BIAS_POINTER, 0)
        for k, shares in enumerate(self.offered):
            number = 10_000 * (1 + k) + self.planned
            self.algorithms[number] = {**self.made[preference], "vector": pointer & -pointer, "of": (desc, a, b, d),
                                       "epilogue": how.get(MatmulDescAttribute.EPILOGUE, 1), "shares": shares,
                                       "bytes": min(1024 + 256 * k, self.made[preference][_P.MAX_WORKSPACE_BYTES])}
            words = at(result + 96 * k, np.uint64, 10)
            words[0], words[8], words[9] = number, self.algorithms[number]["bytes"], how["compute"] in self.without
        at(found, np.int32)[0] = len(self.offered)

    def matmul_algo_config_get_attribute(self, algo: int, attribute: int, value: int, nbytes: int, written: int) -> None:
        assert (attribute, nbytes) == (MatmulAlgoConfigAttribute.SPLITK_NUM, 4)
        at(value, np.int32)[0] = self.algorithms[int(at(algo, np.uint64)[0])]["shares"]

    def matmul_algo_check(self, handle: int, desc: int, a: int, b: int, c: int, d: int, algo: int, result: int) -> None:
        if self.made[desc][MatmulDescAttribute.EPILOGUE] in self.without:
            raise cuBLASLtError("not supported")
        chosen, words = self.algorithms[int(at(algo, np.uint64)[0])], at(result, np.uint64, 10)
        assert chosen["of"] == (desc, a, b, d), "an algorithm of another plan"
        words[8], words[9] = chosen["bytes"], 0

    def matmul(self, handle: int, desc: int, alpha: int, a: int, adesc: int, b: int, bdesc: int, beta: int, c: int, cdesc: int,
               d: int, ddesc: int, algo: int, workspace: int, nbytes: int, stream: int) -> None:
        how, x, y, z = (self.made[h] for h in (desc, adesc, bdesc, ddesc))
        chosen = self.algorithms[int(at(algo, np.uint64)[0])]
        assert chosen["of"] == (desc, adesc, bdesc, ddesc), "an algorithm of another plan"
        assert (c, cdesc) == (d, ddesc)
        scale = FACTORS[how["compute"]]
        factor = float(at(alpha, scale)[0])
        kept = float(at(beta, scale)[0])
        assert (factor == 1 or factor != factor) and kept in (0, 1)
        assert nbytes >= chosen["bytes"]
        assert not nbytes or (workspace and not workspace % 256)
        for address, least in zip((a, b, c, d), (_P.MIN_ALIGNMENT_A_BYTES, _P.MIN_ALIGNMENT_B_BYTES, _P.MIN_ALIGNMENT_C_BYTES,
                                                 _P.MIN_ALIGNMENT_D_BYTES), strict=True):
            assert not address % chosen[least], "an address is less aligned than was promised"
        vector = how.get(MatmulDescAttribute.BIAS_POINTER, 0)
        assert not vector or not vector % chosen["vector"], "a vector is less aligned than the heuristic was shown"
        ta, tb = (how[t] for t in (MatmulDescAttribute.TRANSA, MatmulDescAttribute.TRANSB))
        m, n = z["rows"], z["columns"]
        k = x["rows"] if ta else x["columns"]
        assert (x["columns"] if ta else x["rows"], (y["columns"], y["rows"]) if tb else (y["rows"], y["columns"])) == (
            m, (k, n)), "the shapes do not fit"
        count = z.get(MatrixLayoutAttribute.BATCH_COUNT, 1)
        then = how.get(MatmulDescAttribute.EPILOGUE, 1)
        self.calls.append({"sizes": (m, n, k), "count": count, "transposed": (ta, tb), "data": x["data"], "stream": stream,
                           "compute": how["compute"], "epilogue": then, "workspace": workspace, "c": d, "factor": factor,
                           "shares": chosen["shares"]})
        size = np.dtype(STORED[x["data"]]).itemsize
        steps = [layout.get(MatrixLayoutAttribute.STRIDED_BATCH_OFFSET, 0) * size for layout in (x, y, z)]
        for i in range(count if self.runs() else 0):
            gemm(x["data"], how["compute"], ta, tb, (m, n, k), a + i * steps[0], x["leading"], b + i * steps[1], y["leading"],
                 d + i * steps[2], z["leading"], then, vector, factor, self.larger, kept)


class FakeCublas:
    """``cupy_backends.cuda.libs.cublas``"""

    CUBLASError = cuBLASLtError

    def __init__(self, runs: Callable[[], bool] = lambda: True) -> None:
        self.runs = runs
        self.calls: list[dict[str, Any]] = []

    def gemmEx(self, *arguments: Any) -> None:
        *head, a, kind, lda, b, kind_b, ldb, beta, c, kind_c, ldc, compute, algorithm = arguments
        self.gemmStridedBatchedEx(*head, a, kind, lda, 0, b, kind_b, ldb, 0, beta, c, kind_c, ldc, 0, 1, compute, algorithm)

    def gemmStridedBatchedEx(self, handle: int, ta: int, tb: int, m: int, n: int, k: int, alpha: int, a: int, data: int,
                             lda: int, step_a: int, b: int, data_b: int, ldb: int, step_b: int, beta: int, c: int, data_c: int,
                             ldc: int, step_c: int, count: int, compute: int, algorithm: int) -> None:
        assert (handle, algorithm) == (7, -1)
        assert data == data_b == data_c
        scale = FACTORS[compute]
        kept = float(at(beta, scale)[0])
        assert at(alpha, scale)[0] == 1 and kept in (0, 1)
        self.calls.append({"sizes": (m, n, k), "count": count, "transposed": (ta, tb), "data": data, "compute": compute})
        size = np.dtype(STORED[data]).itemsize
        for i in range(count if self.runs() else 0):
            gemm(data, compute, ta, tb, (m, n, k), a + i * step_a * size, lda, b + i * step_b * size, ldb,
                 c + i * step_c * size, ldc, kept=kept)

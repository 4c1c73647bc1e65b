"""Interfaces to the libraries that multiply matrices: cuBLASLt through nvmath-python, or cuBLAS through CuPy without it.

A library plans a product (:class:`Problem`) once and runs the plan on addresses. cuBLASLt gets its stream and its workspace
with each call, so it allocates nothing, does not wait (except once for a plan with a relu: :meth:`CublasLt.exact`) and can be
captured in a graph. The workspace is one block for each stream (``workspaces``). cuBLAS through CuPy allocates a workspace
of its own, outside gradcore's pools.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from cupy.cuda import runtime

from gradcore.devices.gpu.cublas import Cublas
from gradcore.devices.gpu.faults import of_product
from gradcore.devices.gpu.launch import refuse_notes
from gradcore.devices.gpu.loaded import loading
from gradcore.devices.gpu.problems import (
    ASKED,
    COMPUTE_32F,
    COMPUTE_32F_FAST_TF32,
    DATA,
    EPILOGUES,
    FACTORS,
    VECTOR_ALIGNMENT,
    Library,
    Matrix,
    Problem,
    choose,
    compute_of,
)
from gradcore.devices.gpu.products import SmallProduct, suits
from gradcore.devices.gpu.workspaces import Workspaces, current_stream, flushed, reserve
from gradcore.errors import KernelError
from gradcore.forking import long
from gradcore.memory.driver import DEVICE_TO_HOST
from gradcore.units import parse_bytes

_MOST_PLANS = 4096
#: cublasStatus_t of a heuristic that has no algorithm: an invalid combination of arguments, an unsupported one.
_NO_ALGORITHM = (7, 15)
#: How the host reads one element: a NumPy type, and the number of bytes that are copied into its upper end.
_ELEMENT = {"float32": (np.float32, 4), "float64": (np.float64, 8), "float16": (np.float16, 2), "bfloat16": (np.float32, 2)}


class Plan:
    """cuBLASLt's descriptors of a product, which the plan owns, and the chosen algorithm."""

    __slots__ = ("kind", "descriptor", "layouts", "one", "kept", "not_a_number", "results", "algorithm", "bytes", "vector",
                 "exact", "loaded", "_at", "_destroy")

    def __init__(self, lt: Any, descriptor: int, layouts: tuple[int, int, int], problem: Problem) -> None:
        # First, since the finalizer needs them.
        self.descriptor, self.layouts = descriptor, layouts
        self._destroy = lt.matrix_layout_destroy, lt.matmul_desc_destroy
        self.kind = problem.kind
        self.one, zero, self.not_a_number = FACTORS[problem.kind]
        #: The factor for what the result holds.
        self.kept = self.one if problem.added else zero
        #: The results of the heuristic, best first, and the address of the algorithm in the one that is used.
        self.results = lt.MatmulHeuristicResult(ASKED)
        self.algorithm: int = self.results.ptr
        #: Bytes of workspace.
        self.bytes = 0
        #: Holds the vector's address, which is written before each run; None without a vector.
        self.vector = np.zeros(1, np.int64) if problem.then else None
        #: Does relu propagate NaN? None until it has been tried.
        self.exact: bool | None = None if problem.then == "relu_bias" else True
        #: Has it run? The first run may load its kernel's code.
        self.loaded = False
        self._at: int = 0 if self.vector is None else self.vector.ctypes.data

    def point(self, lt: Any, address: int) -> None:
        """Set the address of the vector."""
        assert self.vector is not None
        self.vector[0] = address
        lt.matmul_desc_set_attribute(self.descriptor, lt.MatmulDescAttribute.BIAS_POINTER, self._at, 8)

    def __del__(self) -> None:
        for layout in self.layouts:
            self._destroy[0](layout)
        self._destroy[1](self.descriptor)


class CublasLt:
    """cuBLASLt by nvmath-python's bindings, on device number ``index``; handles, plans and descriptors live as long as this.

    ``reserve(nbytes)`` returns an object with an address ``ptr``, whose memory is valid as long as it is held.
    """

    unseen = ""

    def __init__(self, lt: Any, workspace: int, reserve: Callable[[int], Any], index: int = 0, small: bool = False) -> None:
        self._lt = lt
        #: Does a kernel of gradcore's own compute small products?
        self._small = small
        self._index = index
        self._handle = lt.create()
        #: Bytes of workspace for each stream.
        self.workspace = workspace
        self.workspaces = Workspaces("the workspace of matrix products", workspace, lambda stream: reserve(workspace))
        self._plans: dict[tuple[Problem, int], Plan | SmallProduct | None] = {}
        # A vector's address is an attribute of its plan, which several threads may use.
        self._lock = long()

    def plan(self, problem: Problem) -> Plan | SmallProduct | None:
        compute = compute_of(problem.kind)
        key = problem, compute
        try:
            return self._plans[key]
        except KeyError:
            pass
        with self._lock:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            if self._small and suits(problem):
                small = self._plans[key] = SmallProduct(problem)
                return small
            try:
                found = self._planned(problem, compute)
                if found is None and compute == COMPUTE_32F_FAST_TF32:
                    # TF32 is allowed, not required.
                    found = self._planned(problem, COMPUTE_32F)
            except self._lt.cuBLASLtError as error:
                raise of_product(f"cuBLASLt could not plan a matrix product: {error}; with GRADCORE_GEMM=cupy products go "
                                 "through cuBLAS instead", runtime) from error
            self._plans[key] = found
        return found

    def _planned(self, problem: Problem, compute: int) -> Plan | None:
        if problem.then not in EPILOGUES:
            return None
        lt, data = self._lt, DATA[problem.kind]
        descriptor = lt.matmul_desc_create(compute, DATA["float64" if problem.kind == "float64" else "float32"])
        of = lt.MatmulDescAttribute

        def describe(attribute: int, value: int) -> None:
            _set(lt, "matmul_desc", descriptor, attribute, value)

        describe(of.TRANSA, problem.x.transposed)
        describe(of.TRANSB, problem.y.transposed)
        # Chosen for the bias alone, so that an activation changes neither the algorithm nor the order of sums.
        first = "bias" if problem.then == "relu_bias" else problem.then
        if first:
            describe(of.EPILOGUE, getattr(lt.Epilogue, EPILOGUES[first]))
        m, n, k = problem.m, problem.n, problem.k
        x = self._layout(data, (k, m) if problem.x.transposed else (m, k), problem.x, problem.batch)
        y = self._layout(data, (n, k) if problem.y.transposed else (k, n), problem.y, problem.batch)
        out = self._layout(data, (m, n), problem.out, problem.batch)
        plan = Plan(lt, descriptor, (x, y, out), problem)
        if problem.then:
            # The heuristic derives the vector's alignment from this address.
            plan.point(lt, VECTOR_ALIGNMENT)
        if not self._choose(plan, problem):
            return None
        if first != problem.then:
            describe(of.EPILOGUE, getattr(lt.Epilogue, EPILOGUES[problem.then]))
            if not self._suits(plan):
                return None
        return plan

    def _layout(self, data: int, shape: tuple[int, int], matrix: Matrix, batch: int) -> int:
        lt = self._lt
        layout: int = lt.matrix_layout_create(data, *shape, matrix.leading)
        if batch > 1:
            for attribute, value in ((lt.MatrixLayoutAttribute.BATCH_COUNT, batch),
                                     (lt.MatrixLayoutAttribute.STRIDED_BATCH_OFFSET, matrix.step)):
                _set(lt, "matrix_layout", layout, attribute, value)
        return layout

    def _choose(self, plan: Plan, problem: Problem) -> bool:
        """Take one of the algorithms that fit in the workspace; False if there is none."""
        lt = self._lt
        preference = lt.matmul_preference_create()
        of = lt.MatmulPreferenceAttribute
        aligned = problem.x.aligned, problem.y.aligned, problem.out.aligned
        for attribute, value in ((of.MAX_WORKSPACE_BYTES, self.workspace), (of.MIN_ALIGNMENT_A_BYTES, aligned[0]),
                                 (of.MIN_ALIGNMENT_B_BYTES, aligned[1]), (of.MIN_ALIGNMENT_C_BYTES, aligned[2]),
                                 (of.MIN_ALIGNMENT_D_BYTES, aligned[2])):
            _set(lt, "matmul_preference", preference, attribute, value)
        found = np.zeros(1, np.int32)
        try:
            lt.matmul_algo_get_heuristic(self._handle, plan.descriptor, *plan.layouts, plan.layouts[2], preference, ASKED,
                                         plan.results.ptr, found.ctypes.data)
        except lt.cuBLASLtError as error:
            # What fails only now, as a heuristic does during a capture (INTERNAL_ERROR, CUDA 13.3), must not be remembered.
            if error.status not in _NO_ALGORITHM:
                raise
            return False
        finally:
            lt.matmul_preference_destroy(preference)
        size = lt.matmul_heuristic_result_dtype.itemsize
        offered = [(plan.results.ptr + i * size, result) for i in range(int(found[0]))
                   if not int((result := plan.results[i]).state)]
        if not offered:
            return False
        plan.algorithm, result = offered[choose(problem.k, [self._shares(address) for address, _ in offered])]
        plan.bytes = int(result.workspace_size)
        return True

    def _shares(self, algorithm: int) -> int:
        """The number of shares into which an algorithm splits the sums."""
        lt, written = self._lt, np.zeros(1, np.uint64)
        attribute = lt.MatmulAlgoConfigAttribute.SPLITK_NUM
        found = np.zeros(1, lt.get_matmul_algo_config_attribute_dtype(attribute))
        lt.matmul_algo_config_get_attribute(algorithm, attribute, found.ctypes.data, found.nbytes, written.ctypes.data)
        return int(found[0])

    def _suits(self, plan: Plan) -> bool:
        """Does the algorithm also work for the descriptor as changed since its choice, within the workspace?"""
        lt, result = self._lt, self._lt.MatmulHeuristicResult(1)
        try:
            lt.matmul_algo_check(self._handle, plan.descriptor, *plan.layouts, plan.layouts[2], plan.algorithm, result.ptr)
        except lt.cuBLASLtError as error:
            if error.status not in _NO_ALGORITHM:
                raise
            return False
        plan.bytes = int(result.workspace_size)
        return not int(result.state) and plan.bytes <= self.workspace

    def exact(self, plan: Any, x: int, y: int, out: int, vector: int) -> bool:
        """Does the plan's relu propagate NaN? cuBLASLt does not document it, and the hardware's maximum of NaN and 0 is 0. So a
        plan with a relu is tried once, with NaN as a factor, which must be everywhere in the result. That waits for the stream,
        so it breaks a capture."""
        if plan.exact is None:
            refuse_notes()
            stream, (dtype, nbytes) = current_stream(), _ELEMENT[plan.kind]
            found = np.zeros(1, dtype)
            self.run(plan, x, y, out, vector, plan.not_a_number)
            runtime.memcpyAsync(found.ctypes.data + found.nbytes - nbytes, out, nbytes, DEVICE_TO_HOST, stream)
            runtime.streamSynchronize(stream)
            plan.exact = bool(np.isnan(found[0]))
        return bool(plan.exact)

    def run(self, plan: Plan | SmallProduct, x: int, y: int, out: int, vector: int, factor: int = 0) -> None:
        """Run a plan. ``factor`` is the address of a factor for the product, 0 for the factor 1."""
        if isinstance(plan, SmallProduct):
            plan.run(x, y, out, vector)
            return
        if not plan.loaded:
            plan.loaded = True
            with loading("cuBLASLt", self._index):
                try:
                    self.run(plan, x, y, out, vector, factor)
                except KernelError:
                    # Its kernel's code, which the driver loads now, may not have fitted beside what the pools had cached: the
                    # library does not say.
                    if not flushed(self._index):
                        raise
                    self.run(plan, x, y, out, vector, factor)
            return
        stream = current_stream()
        workspace = self.workspaces.of(stream) if plan.bytes else 0
        factor = factor or plan.one
        if plan.vector is None:
            self._start(plan, factor, x, y, out, workspace, stream)
            return
        with self._lock:
            plan.point(self._lt, vector)
            self._start(plan, factor, x, y, out, workspace, stream)

    def _start(self, plan: Plan, factor: int, x: int, y: int, out: int, workspace: int, stream: int) -> None:
        a, b, c = plan.layouts
        try:
            self._lt.matmul(self._handle, plan.descriptor, factor, x, a, y, b, plan.kept, out, c, out, c, plan.algorithm,
                            workspace, plan.bytes, stream)
        except self._lt.cuBLASLtError as error:
            raise of_product(f"cuBLASLt could not launch a matrix product: {error}", runtime) from error


def _set(lt: Any, kind: str, of: int, attribute: int, value: int) -> None:
    """Set an attribute of one of cuBLASLt's objects."""
    number = np.array(value, getattr(lt, f"get_{kind}_attribute_dtype")(attribute))
    getattr(lt, f"{kind}_set_attribute")(of, attribute, number.ctypes.data, number.nbytes)


# -- the library of a device -------------------------------------------------------------------------------------------------

#: Libraries in use, by the index of the device.
LIBRARIES: dict[int, Library] = {}


def library() -> Library:
    """The library of the current device, created when first used."""
    index = runtime.getDevice()
    found = LIBRARIES.get(index)
    if found is None:
        found = LIBRARIES[index] = make_library(index)
    return found


def make_library(index: int) -> Library:
    """cuBLASLt, or cuBLAS by CuPy if nvmath-python or cuBLASLt is missing or ``GRADCORE_GEMM`` is ``cupy``."""
    if os.environ.get("GRADCORE_GEMM") == "cupy":
        return Cublas("GRADCORE_GEMM=cupy")
    try:
        with warnings.catch_warnings():
            # Whoever makes warnings errors, as our tests do, does not want another library for one of an import.
            warnings.simplefilter("ignore")
            from nvmath.bindings import cublasLt
    except Exception as error:  # the package imports many others, whose versions may not suit
        return Cublas(f"nvmath-python cannot be imported ({error})")
    nbytes = workspace_bytes(index)
    try:
        with loading("cuBLASLt", index):
            return CublasLt(cublasLt, nbytes, lambda size: reserve(index, size, "cuBLASLt", "matmul"), index,
                            small=True)
    except Exception as error:  # nvmath has its own types of errors for missing and for failing libraries
        if hasattr(error, "status") and flushed(index):
            # A handle takes memory of the card, too, and there may have been none.
            return make_library(index)
        return Cublas(f"nvmath-python cannot use cuBLASLt ({error})")


def workspace_bytes(index: int) -> int:
    """Bytes of a stream's workspace: ``GRADCORE_GEMM_WORKSPACE``, or what NVIDIA recommends for the architecture
    (docs.nvidia.com/cuda/cublas, cublasSetWorkspace)."""
    asked = os.environ.get("GRADCORE_GEMM_WORKSPACE")
    if asked:
        return parse_bytes(asked)
    major = int(runtime.getDeviceProperties(index)["major"])
    return {9: 32, 10: 32, 12: 12}.get(major, 4) << 20


def unseen(index: int) -> str:
    """A description of what a device's library allocates outside gradcore's pools; "" for nothing."""
    found = LIBRARIES.get(index)
    return "" if found is None else found.unseen

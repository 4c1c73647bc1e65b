"""Products of small matrices by a kernel of gradcore's own, which is faster there than a library's."""

from __future__ import annotations

import numpy as np

from gradcore.devices.gpu import launch
from gradcore.devices.gpu.problems import RELU_GRADIENT, Problem

#: As the kernel has them.
SIZES = np.dtype([(name, "i8") for name in ("m", "n", "k", "x_row", "x_inner", "y_inner", "y_column", "out_column",
                                            "x_step", "y_step", "out_step")])
THEN = ("", "bias", "relu_bias", "bias_gradient", RELU_GRADIENT)
#: Rows and columns of the part of the result that a block computes; the most blocks, and the most products in a sum. On an H200
#: it takes 0.6 to 0.9 of cuBLASLt's time there, and as long with twice as many.
_SIDE, _BLOCKS, _INNER = 16, 128, 256


def blocks_of(problem: Problem) -> int:
    return -(-problem.m // _SIDE) * -(-problem.n // _SIDE) * problem.batch


def suits(problem: Problem) -> bool:
    """Is the kernel the faster one? Sums are never split, so that short ones of not too many elements suit."""
    return (problem.kind == "float32" and problem.k <= _INNER and blocks_of(problem) <= _BLOCKS
            and (problem.batch == 1 or not problem.then) and not problem.added)


class SmallProduct:
    """A plan, as a library makes one."""

    #: Does its relu propagate NaN?
    exact = True

    __slots__ = ("_instance", "_blocks", "_sizes")

    def __init__(self, problem: Problem) -> None:
        x, y = problem.x, problem.y
        self._instance = f"small_product<{THEN.index(problem.then)}>"
        self._blocks = blocks_of(problem)
        self._sizes = np.array((problem.m, problem.n, problem.k, *((x.leading, 1) if x.transposed else (1, x.leading)),
                                *((y.leading, 1) if y.transposed else (1, y.leading)), problem.out.leading, x.step, y.step,
                                problem.out.step), SIZES)

    def run(self, x: int, y: int, out: int, vector: int) -> None:
        launch.launch("product", self._instance, self._blocks, launch.BLOCK, (
            np.uint64(x), np.uint64(y), np.uint64(out), np.uint64(vector), self._sizes))

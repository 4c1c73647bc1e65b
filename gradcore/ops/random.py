"""Random numbers, counter-based: a value depends on seed and position alone, so any device makes the same one.

Philox 4x64-10: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011. The generator's state is four
unsigned 64-bit words in device memory, two of key and two of counter; a launch takes the counter that it finds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.dtypes import is_floating
from gradcore.errors import SpecError
from gradcore.ops.creation import sized
from gradcore.ops.op import Inferred, op
from gradcore.ops.shapes import compare, need_float, with_workspace
from gradcore.spec import PIECE, TensorSpec

#: Shape and dtype of a generator's state: key, unused word, counter, a word that no kernel reads (``Generator.get_state``).
STATE = TensorSpec.of((4,), np.int64)


def _advance_spec(state: TensorSpec, *, numel: int) -> TensorSpec:
    return STATE


def _random_spec(state: TensorSpec, low: type, high: type, *, shape: tuple[int, ...], dtype: Any) -> TensorSpec:
    if not is_floating(np.dtype(dtype)):
        raise SpecError(f"random numbers of dtype {np.dtype(dtype).name}: expected a floating type")
    return sized(shape, dtype)


def _normal_spec(state: TensorSpec, mean: type, std: type, *, shape: tuple[int, ...], dtype: Any) -> Any:
    spec = _random_spec(state, mean, std, shape=shape, dtype=dtype)
    return with_workspace(spec, 2 * min(spec.numel + 1, PIECE) * 8 + 32)


def _filled(infer: Any, name: str) -> Any:
    def spec(x: TensorSpec, state: TensorSpec, first: type, second: type) -> Inferred:
        need_float(name, x=x)
        drawn = Inferred.of(infer(state, first, second, shape=x.shape, dtype=x.dtype))
        # First of all the state to draw from: the generator moves on before, since other threads draw meanwhile.
        return Inferred((), workspace=STATE.nbytes + (drawn.workspace or 0))

    return spec


def _dropout_spec(x: TensorSpec, state: TensorSpec, p: type) -> Any:
    need_float("dropout", input=x)
    return with_workspace(x.like(), min(x.numel, PIECE) * 5)


def _weights_spec(x: TensorSpec) -> TensorSpec:
    need_float("multinomial", input=x)
    if not x.ndim:
        raise SpecError("multinomial: expected a dimension of categories, but got a 0-d tensor")
    return x.like(np.float64)


#: A copy of the state for one launch, with the generator moved on past the numbers that it will take.
advance = op("advance", _advance_spec, writes=("state",))
uniform = op("uniform", _random_spec, doc="Uniform in [low, high).")
normal = op("normal", _normal_spec, doc="Box and Muller's transform of pairs of uniforms.")
uniform_ = op("uniform_", _filled(_random_spec, "uniform_"), contiguous=True, writes=("x", "state"),
              doc="Uniform in [low, high), over what a tensor held; the generator itself moves on.")
normal_ = op("normal_", _filled(_normal_spec, "normal_"), contiguous=True, writes=("x", "state"),
             doc="Normal, over what a tensor held; the generator itself moves on.")
dropout = op("dropout", _dropout_spec, contiguous=True, may_alias=("x",), x=lambda g, state, p: dropout(g, state, p),
             doc="x / (1 - p) with probability 1 - p, else 0. Backward recomputes the mask, which is never stored. "
                 "Srivastava et al., JMLR 15 (2014).")
chance = op("chance", compare,
            doc="True with probability p, for u uniform in [0, 1). The CPU raises RuntimeError for p outside [0, 1].")
sampling_weights = op("sampling_weights", _weights_spec,
                      doc="Weights [.., categories] as float64. The CPU raises RuntimeError for one that is negative or not "
                          "finite, and for a row of zeros.")

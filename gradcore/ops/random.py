"""Random numbers, counter-based: a value depends on seed and position alone, so any device makes the same one.

Philox 4x64-10: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011. The generator's state is four
unsigned 64-bit words in device memory, two of key and two of counter; a launch takes the counter that it finds.

Draws by rejection, whose number of attempts depends on the values, read block i of the stream for element i, and on attempt k
that of the stream with k as the counter's second word. Gamma: Marsaglia and Tsang, A Simple Method for Generating Gamma
Variables, 2000. Poisson and binomial: Hoermann, The Transformed Rejection Method for Generating Poisson Random Variables, and
The Generation of Binomial Random Variates, 1993; below a mean of 10 by summing probabilities.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcore.dtypes import is_floating
from gradcore.errors import NoSecondDerivative, SpecError
from gradcore.ops.creation import sized
from gradcore.ops.op import Inferred, joint, op, spending
from gradcore.ops.shapes import compare, need_float, with_workspace
from gradcore.spec import PIECE, TensorSpec
from gradcore.tiling import intricate

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
dropout = op("dropout", _dropout_spec, contiguous=True, may_alias=("x",), x=spending(lambda g, state, p: dropout(g, state, p)),
             again=lambda x, state, p: dropout(x, state, p),
             doc="x / (1 - p) with probability 1 - p, else 0. Backward recomputes the mask, which is never stored. "
                 "Srivastava et al., JMLR 15 (2014).")
chance = op("chance", compare,
            doc="True with probability p, for u uniform in [0, 1). The CPU raises RuntimeError for p outside [0, 1].")
sampling_weights = op("sampling_weights", _weights_spec,
                      doc="Weights [.., categories] as float64. The CPU raises RuntimeError for one that is negative or not "
                          "finite, and for a row of zeros.")

# -- by rejection ------------------------------------------------------------------------------------------------------


def _drawn_spec(name: str, temporaries: int) -> Any:
    def infer(x: TensorSpec, state: TensorSpec) -> Inferred:
        need_float(name, input=x)
        return Inferred((x.like(),), library=intricate(x, temporaries))

    return infer


def _binomial_spec(count: TensorSpec, prob: TensorSpec, state: TensorSpec) -> Inferred:
    need_float("binomial", count=count, prob=prob)
    if (count.shape, count.dtype) != (prob.shape, prob.dtype):
        raise SpecError(f"binomial: count and prob must have one shape and dtype, but got {count} and {prob}")
    return Inferred((count.like(),), library=intricate(count, 32))


def _slope_spec(concentration: TensorSpec, drawn: TensorSpec) -> Inferred:
    if (concentration.shape, concentration.dtype) != (drawn.shape, drawn.dtype):
        raise SpecError(f"standard_gamma draws no {drawn} for {concentration}")
    return Inferred((drawn.like(),), library=intricate(drawn, 17))


def _once(g: Any) -> Any:
    raise NoSecondDerivative("the derivative of a gamma distribution by its concentration cannot be differentiated: PyTorch's "
                             "cannot, either")


standard_gamma = op("standard_gamma", _drawn_spec("standard_gamma", 17), contiguous=True,
                    x=lambda g, x, out: g * standard_gamma_slope(x, out),
                    doc="A draw of Gamma(x, 1) for each concentration x. Its gradient is that of the quantile.")
standard_gamma_slope = op("standard_gamma_slope", _slope_spec, joint("concentration", "drawn")(_once), contiguous=True,
                          doc="The derivative of a quantile of a gamma distribution by its concentration: Figurnov et al., "
                              "Implicit Reparameterization Gradients, arXiv:1805.08498.")
poisson = op("poisson", _drawn_spec("poisson", 25), contiguous=True, doc="A count of events for each rate. The CPU raises "
             "RuntimeError for a negative rate.")
binomial = op("binomial", _binomial_spec, contiguous=True, doc="Successes among ``count`` trials of probability ``prob``. The "
              "CPU raises RuntimeError for a negative count and for what is no probability.")

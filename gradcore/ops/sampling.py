"""Random draws by rejection, whose number of attempts depends on the values; see ``ops.random`` for the generator's state.

Element i reads block i of the stream, and on attempt k that of the stream with k as the counter's second word. Gamma: Marsaglia
and Tsang, A Simple Method for Generating Gamma Variables, 2000. Poisson and binomial: Hoermann, The Transformed Rejection
Method for Generating Poisson Random Variables, and The Generation of Binomial Random Variates, 1993; below a mean of 10 by
summing probabilities.
"""

from __future__ import annotations

from typing import Any

from gradcore.errors import NoSecondDerivative, SpecError
from gradcore.ops.op import Inferred, joint, op
from gradcore.ops.shapes import need_float
from gradcore.spec import TensorSpec
from gradcore.tiling import intricate


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


def _once(*_: Any) -> Any:
    raise NoSecondDerivative("the derivative of a gamma distribution by its concentration cannot be differentiated: PyTorch's "
                             "cannot, either")


standard_gamma = op("standard_gamma", _drawn_spec("standard_gamma", 17), contiguous=True,
                    x=lambda g, x, out: g * standard_gamma_slope(x, out),
                    doc="A draw of Gamma(x, 1) for each concentration x. Its gradient is that of the quantile.")
standard_gamma_slope = op("standard_gamma_slope", _slope_spec, joint("concentration", "drawn")(lambda g: _once(g)),
                          contiguous=True,
                          doc="The derivative of a quantile of a gamma distribution by its concentration: Figurnov et al., "
                              "Implicit Reparameterization Gradients, arXiv:1805.08498.")
poisson = op("poisson", _drawn_spec("poisson", 25), contiguous=True, doc="A count of events for each rate. The CPU raises "
             "RuntimeError for a negative rate.")
binomial = op("binomial", _binomial_spec, contiguous=True, doc="Successes among ``count`` trials of probability ``prob``. The "
              "CPU raises RuntimeError for a negative count and for what is no probability.")

__all__ = ["binomial", "poisson", "standard_gamma", "standard_gamma_slope"]

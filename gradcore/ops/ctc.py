"""The loss of a sequence whose labels have no times: connectionist temporal classification."""

from __future__ import annotations

from typing import Any

from gradcore.errors import NoSecondDerivative, SpecError
from gradcore.ops.op import Inferred, joint, op
from gradcore.spec import TensorSpec


def _columns(log_probs: TensorSpec, targets: TensorSpec) -> int:
    """Positions in all samples' labels with a blank before, between and after them.

    Of labels in a row, it does not depend on how they are divided among the samples.
    """
    samples = log_probs.shape[1]
    return samples + 2 * (targets.numel if targets.ndim == 1 else samples * targets.shape[1])


def _check(log_probs: TensorSpec, targets: TensorSpec, input_lengths: TensorSpec, target_lengths: TensorSpec,
           blank: int) -> None:
    if log_probs.ndim != 3:
        raise SpecError(f"ctc_loss: Expected 3-dimensional tensor, but got {log_probs.ndim}-dimensional tensor for argument #1 "
                        "'log_probs'")
    if not log_probs.floating or log_probs.dtype.itemsize < 4:
        raise SpecError(f"ctc_loss: expected log_probs of float32 or float64, but got {log_probs.dtype.name}")
    if not log_probs.numel:
        raise SpecError("log_probs tensor must not be empty")
    _, samples, classes = log_probs.shape
    if not 0 <= blank < classes:
        raise SpecError(f"blank must be in label range: expected 0 to {classes - 1}, but got {blank}")
    for name, spec in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if spec.dtype.kind not in "iu":
            raise SpecError(f"{name} must be integral, but is {spec.dtype.name}")
        if spec.shape != (samples,):
            raise SpecError(f"{name} must be of size batch_size, {samples}, but is {list(spec.shape)}")
    if targets.ndim not in (1, 2):
        raise SpecError(f"ctc_loss: Expected 1 to 2 dimensions, but got {targets.ndim}-dimensional tensor for argument #2 "
                        "'targets'")
    if targets.ndim == 2 and targets.shape[0] != samples:
        raise SpecError(f"ctc_loss: Expected tensor to have size {samples} at dimension 0, but got size {targets.shape[0]} for "
                        "argument #2 'targets'")
    if any(spec.dtype.name != "int64" for spec in (targets, input_lengths, target_lengths)):
        raise SpecError("ctc_loss: expected int64 for targets and lengths, but got "
                        f"{[s.dtype.name for s in (targets, input_lengths, target_lengths)]}")


def _ctc_spec(log_probs: TensorSpec, targets: TensorSpec, input_lengths: TensorSpec, target_lengths: TensorSpec, *,
              blank: int = 0, zero_infinity: bool = False) -> Inferred:
    _check(log_probs, targets, input_lengths, target_lengths, blank)
    steps, samples, _ = log_probs.shape
    columns, dtype = _columns(log_probs, targets), log_probs.dtype
    # A class and a flag for each column, and two rows.
    workspace = columns * (9 + 2 * dtype.itemsize) + 64
    return Inferred((TensorSpec.of((samples,), dtype),), (("alpha", TensorSpec.of((steps, columns), dtype)),), workspace)


def _ctc_grad_spec(dy: TensorSpec, log_probs: TensorSpec, targets: TensorSpec, input_lengths: TensorSpec,
                   target_lengths: TensorSpec, loss: TensorSpec, alpha: TensorSpec, *, blank: int,
                   zero_infinity: bool) -> Inferred:
    _check(log_probs, targets, input_lengths, target_lengths, blank)
    return Inferred((log_probs.like(),), workspace=alpha.shape[1] * (9 + 5 * dy.dtype.itemsize) + 128)


def _once(g: Any) -> Any:
    raise NoSecondDerivative("the gradient of ctc_loss cannot be differentiated: PyTorch's cannot, either")


ctc_loss = op("ctc_loss", _ctc_spec,
              joint("log_probs")(lambda g, g_alpha, log_probs, targets, input_lengths, target_lengths, out, alpha, attrs:
                                 ctc_loss_grad(g, log_probs, targets, input_lengths, target_lengths, out, alpha, **attrs)),
              aux=("alpha",), contiguous=True,
              doc="Minus the logarithm of the probability of each sample's labels, at any times. Graves et al., Connectionist "
                  "Temporal Classification, ICML 2006. ``alpha``, the logarithms of all beginnings' probabilities, is kept.")
ctc_loss_grad = op("ctc_loss_grad", _ctc_grad_spec, joint("dy", "log_probs")(_once), contiguous=True,
                   doc="(exp(log_probs) - shares of the classes at each step) * dy: as PyTorch's, the gradient of the logits "
                       "whose log_softmax log_probs is. 0 for an infinite loss with ``zero_infinity``, else NaN.")

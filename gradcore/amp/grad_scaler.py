"""``GradScaler``: dynamic loss scaling, so that small gradients do not underflow in float16."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gradcore import functional
from gradcore.engine.modes import no_grad
from gradcore.engine.sites import here
from gradcore.engine.value import Value
from gradcore.errors import TraceError
from gradcore.ops import elementwise, in_place, reduce

_READY, _UNSCALED, _STEPPED = range(3)
_FLOAT = np.dtype(np.float32)
_LARGEST = float(np.finfo(_FLOAT).max)


class GradScaler:
    """Scales the loss, and unscales the gradients before the update.

    If gradients overflow, the update is skipped and the scale multiplied by ``backoff_factor``; after ``growth_interval``
    updates without overflow, it is multiplied by ``growth_factor``. Micikevicius et al., arXiv:1710.03740, section 3.2; names
    and defaults are PyTorch's. A step reads one bool on the host.
    """

    #: Attributes whose change makes a compiled function that reads them trace again.
    _compile_decides = frozenset(("_scale", "_enabled", "_growth_factor", "_backoff_factor", "_growth_interval"))

    def __init__(self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0,
                 backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True) -> None:
        if enabled and not growth_factor > 1.0:
            raise AssertionError(f"The growth factor must be > 1.0, but got {growth_factor}")
        if enabled and not backoff_factor < 1.0:
            raise AssertionError(f"The backoff factor must be < 1.0, but got {backoff_factor}")
        self._device = device
        self._enabled = enabled
        self._scale = float(init_scale)
        self._growth_factor, self._backoff_factor, self._growth_interval = growth_factor, backoff_factor, growth_interval
        self._growth_tracker = 0
        self._has_scaled = False
        #: By optimizer: its stage, and whether its gradients were finite: a 0-d bool for each device, or the answer.
        self._seen: dict[int, tuple[int, Any]] = {}

    def scale(self, outputs: Any) -> Any:
        """``outputs``, a tensor or an iterable of tensors, times the scale; a 0-d tensor of 16 bits becomes float32."""
        if not self._enabled:
            return outputs
        self._has_scaled = True
        if isinstance(outputs, Value):
            device = outputs.storage.device
            return elementwise.mul(outputs, functional.full((), self._scale, dtype=_FLOAT, device=device))
        if isinstance(outputs, Iterable):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise ValueError(f"outputs must be a Tensor or an iterable of Tensors, but got {type(outputs).__name__}")

    @no_grad()
    def unscale_(self, optimizer: Any) -> None:
        """Divide the optimizer's gradients by the scale, in place, and note whether all are finite.

        Call it before clipping gradients; otherwise :meth:`step` does. Raises RuntimeError if it was called since the last
        update, and ValueError for gradients in float16, which could underflow in the division. This method, :meth:`step` and
        :meth:`update` raise AssertionError if nothing has ever been scaled.
        """
        if not self._enabled:
            return
        self._require_scaled("unscale_")
        stage, _ = self._seen.get(id(optimizer), (_READY, None))
        if stage == _UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if stage == _STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(grad.dtype == np.float16 for grad in grads):
            raise ValueError("Attempting to unscale FP16 gradients.")
        found: dict[Any, list[Any]] = {}
        for grad in grads:
            finite = reduce.all(elementwise.isfinite(grad), dims=tuple(range(grad.spec.ndim)), keepdim=False)
            found.setdefault(grad.storage.device, []).append(finite)
        folded = [reduce.all(functional.stack(each), dims=(0,), keepdim=False) for each in found.values()]
        # Last, since that needs no memory: after an OutOfMemory none has been divided, and the call can be repeated.
        for grad in grads:
            in_place.mul_(grad, 1 / self._scale)
        self._seen[id(optimizer)] = _UNSCALED, folded

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``optimizer.step(...)``, unless a gradient is infinite or NaN.

        Raises RuntimeError if it was called since the last update or for a closure, AssertionError without any gradients.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or args:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._require_scaled("step")
        stage, _ = self._seen.get(id(optimizer), (_READY, None))
        if stage == _STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if stage == _READY:
            self.unscale_(optimizer)
        folded = self._seen[id(optimizer)][1]
        if not folded:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        finite = _are_finite(folded)
        result = optimizer.step(**kwargs) if finite else None
        self._seen[id(optimizer)] = _STEPPED, finite
        return result

    def update(self, new_scale: Any = None) -> None:
        """Adjust the scale by what the steps since the last update found, or set it to ``new_scale``.

        Raises AssertionError if there was no step, or no gradient.
        """
        if not self._enabled:
            return
        self._require_scaled("update")
        answers = [a if isinstance(a, bool) else _are_finite(a) for _, a in self._seen.values() if a != []]
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not answers:
            raise AssertionError("No inf checks were recorded prior to update.")
        elif not all(answers):
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                grown = self._scale * self._growth_factor
                # The scale is a float32 beside the loss, where a larger one would be infinity.
                self._scale = grown if grown <= _LARGEST else self._scale
                self._growth_tracker = 0
        self._seen.clear()

    def _require_scaled(self, what: str) -> None:
        """Otherwise gradients of a loss that nobody has scaled would be divided by the scale."""
        if not self._has_scaled:
            raise AssertionError(f"Attempted {what}() but nothing has been scaled: call scaler.scale(loss).backward() first")

    def get_scale(self) -> float:
        """The scale; 1 if not enabled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by after enough updates in a row without an overflow."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set :meth:`get_growth_factor`."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after an overflow."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set :meth:`get_backoff_factor`."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """After how many updates in a row without an overflow the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set :meth:`get_growth_interval`."""
        self._growth_interval = new_interval

    def is_enabled(self) -> bool:
        """Whether anything is scaled at all."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The scale, its factors, and the number of updates since the last overflow; empty if not enabled."""
        if not self._enabled:
            return {}
        return {"scale": self._scale, "growth_factor": self._growth_factor, "backoff_factor": self._backoff_factor,
                "growth_interval": self._growth_interval, "_growth_tracker": self._growth_tracker}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the :meth:`state_dict` of a scaler of gradcore or PyTorch. Raises RuntimeError for an empty one."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("The source state dict is empty, possibly because it was saved from a disabled instance of "
                               "GradScaler.")
        self._scale = float(state_dict["scale"])
        self._growth_factor, self._backoff_factor = state_dict["growth_factor"], state_dict["backoff_factor"]
        self._growth_interval, self._growth_tracker = state_dict["growth_interval"], state_dict["_growth_tracker"]


def _are_finite(folded: list[Value]) -> bool:
    """On meta, where nothing has values, gradients are taken to be finite: the update is done, which takes more memory."""
    try:
        return all(bool(f) for f in folded if f.storage.device.type != "meta")
    except TraceError:
        raise TraceError(f"{here()}: GradScaler.step() and update() depend on whether the gradients are finite, which a "
                         "replay cannot follow: call both after the compiled function; scaler.scale(loss).backward() can stay "
                         "inside") from None

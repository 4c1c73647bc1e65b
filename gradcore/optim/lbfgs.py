"""L-BFGS, with an optional line search for the strong Wolfe conditions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gradcore import functional
from gradcore.engine.modes import enable_grad, no_grad
from gradcore.engine.state import scoped
from gradcore.optim.optimizer import Group, Optimizer
from gradcore.optim.stepped import check_options

Tensor = Any
#: c1 and c2 of the Wolfe conditions: factors of the initial slope, for the decrease of the loss and the slope at the end.
_FALL, _FLAT = 1e-4, 0.9


class Point(NamedTuple):
    """A point on the search line: the step length, the loss there, the gradient, and the slope along the line."""

    t: float
    loss: float
    grad: Tensor
    slope: float


class LBFGS(Optimizer):
    """Limited-memory BFGS: Liu and Nocedal, On the limited memory BFGS method for large scale optimization, 1989.

    A step takes up to ``max_iter`` iterations, and calls its closure up to ``max_eval`` times, by default max_iter * 5 // 4. It
    ends early if no gradient exceeds ``tolerance_grad``, or parameters or loss change by no more than ``tolerance_change``.
    ``line_search_fn`` is None, for steps of length ``lr``, or ``"strong_wolfe"``: Nocedal and Wright, Numerical Optimization,
    algorithms 3.5 and 3.6. The last ``history_size`` changes of gradient and parameters are kept, each as large as all
    parameters. Values are read on the host, so it cannot be compiled. Raises ValueError for several groups of parameters.
    """

    def __init__(self, params: Iterable[Any], lr: Any = 1, max_iter: int = 20, max_eval: int | None = None,
                 tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
                 line_search_fn: str | None = None) -> None:
        check_options("LBFGS", lr, 0.0)
        if line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(f"only 'strong_wolfe' is supported as line_search_fn, but got {line_search_fn!r}")
        super().__init__(params, {"lr": lr, "max_iter": max_iter,
                                  "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
                                  "tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change,
                                  "history_size": history_size, "line_search_fn": line_search_fn})
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        self._optim_evaluate: Callable[[], float] | None = None
        self._optim_loss = math.nan

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters; ``closure`` clears the gradients, computes the loss and its gradients, and returns the loss.

        Returns the loss before the step. Raises TypeError without a closure.
        """
        if closure is None:
            raise TypeError("LBFGS computes the loss several times in a step: it needs step(closure), where closure() calls "
                            "zero_grad() and backward(), and returns the loss")
        # The closure is called several times; the loss as a number decides when to stop.
        def loss_of() -> Any:
            with enable_grad():
                loss = closure()
            self._optim_loss = float(loss)
            return loss

        self._optim_evaluate = loss_of
        try:
            loss = loss_of()
            with no_grad():
                self._optim_update(self.param_groups[0])
            return loss
        finally:
            self._optim_evaluate = None

    def _optim_update(self, group: Group) -> None:
        params, lr, most = group["params"], float(group["lr"]), group["max_eval"]
        state = self.state[params[0]]
        n = state.setdefault("n_iter", 0)
        state["func_evals"] = state.get("func_evals", 0) + 1
        grad, evaluations = _flat_grad(params), 1
        if _largest(grad) <= group["tolerance_grad"]:
            return
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] = n = n + 1
            if n == 1:
                state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
            direction = self._optim_direction(state, grad, group["history_size"]) if n > 1 else -grad
            t = lr if n > 1 else min(1.0, 1 / grad.abs().sum().item()) * lr
            here = Point(0.0, self._optim_loss, grad, grad.dot(direction).item())
            state.update(d=direction, t=t, prev_flat_grad=grad, prev_loss=here.loss)
            if here.slope > -group["tolerance_change"]:
                break
            if group["line_search_fn"] is None:
                _move(params, direction, t)
                if iteration == group["max_iter"]:
                    break
                self._optim_call()
                grad, more = _flat_grad(params), 1
            else:
                found, more = _strong_wolfe(self._optim_along(params, direction), here, t, _largest(direction),
                                            most - evaluations)
                t, self._optim_loss, grad, _ = found
                state["t"] = t
                _move(params, direction, t)
            evaluations += more
            state["func_evals"] += more
            if (iteration == group["max_iter"] or evaluations >= most or _largest(grad) <= group["tolerance_grad"]
                    or _largest(direction) * abs(t) <= group["tolerance_change"]
                    or abs(self._optim_loss - here.loss) < group["tolerance_change"]):
                break

    def _optim_call(self) -> None:
        assert self._optim_evaluate is not None
        self._optim_evaluate()

    @staticmethod
    def _optim_direction(state: Group, grad: Tensor, history_size: int) -> Tensor:
        """Minus the approximate inverse Hessian times the gradient, by the two-loop recursion over the kept steps."""
        dirs, steps, ro = state["old_dirs"], state["old_stps"], state["ro"]
        with scoped(role="optimizer state"):
            y, s = grad - state["prev_flat_grad"], state["d"] * state["t"]
            direction = -grad
        ys = y.dot(s)
        if ys.item() > 1e-10:
            if len(dirs) == history_size:
                for kept in (dirs, steps, ro):
                    del kept[0]
            dirs.append(y)
            steps.append(s)
            ro.append(1 / ys)
            state["H_diag"] = ys / y.dot(y)
        shares = []
        # The coefficients stay on the device, since reading them would synchronize.
        for y, s, r in zip(reversed(dirs), reversed(steps), reversed(ro), strict=True):
            shares.append(s.dot(direction) * r)
            direction.addcmul_(y, shares[-1], value=-1)
        direction.mul_(state["H_diag"])
        for y, s, r, share in zip(dirs, steps, ro, reversed(shares), strict=True):
            direction.addcmul_(s, share - y.dot(direction) * r)
        return direction

    def _optim_along(self, params: list[Tensor], direction: Tensor) -> Callable[[float], Point]:
        """A function that evaluates the loss at a step length along ``direction``, and restores the parameters."""
        start = [p.detach().clone() for p in params]

        def evaluate(t: float) -> Point:
            _move(params, direction, t)
            self._optim_call()
            grad = _flat_grad(params)
            for p, was in zip(params, start, strict=True):
                p.detach().copy_(was)
            return Point(t, self._optim_loss, grad, grad.dot(direction).item())

        return evaluate

    def _optim_loaded(self, p: Tensor, name: str, value: Any) -> Any:
        found = super()._optim_loaded(p, name, value)
        # PyTorch's is a tensor if its learning rate is one.
        return found.item() if name == "t" and hasattr(found, "item") else found


def _flat_grad(params: list[Tensor]) -> Tensor:
    """All gradients concatenated, with zeros for parameters without one."""
    parts = [(functional.zeros_like(p) if p.grad is None else p.grad.detach()).reshape(-1) for p in params]
    with scoped(role="optimizer state"):
        return functional.cat(parts)


def _move(params: list[Tensor], direction: Tensor, t: float) -> None:
    for p, part in zip(params, direction.split([p.spec.numel for p in params]), strict=True):
        p.detach().add_(part.reshape(p.spec.shape), alpha=t)


def _largest(x: Tensor) -> float:
    return float(x.abs().max())


def _cubic(a: Point, b: Point, least: float, most: float) -> float:
    """The minimum, within bounds, of the cubic through two points with their slopes; the middle if it has no minimum."""
    if a.t > b.t:
        a, b = b, a
    try:
        d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
        d2 = math.sqrt(d1 ** 2 - a.slope * b.slope)
        t = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
    except (ValueError, ZeroDivisionError, OverflowError):
        return (least + most) / 2
    return min(max(t, least), most)


def _strong_wolfe(evaluate: Callable[[float], Point], start: Point, t: float, size: float, most: int) -> tuple[Point, int]:
    """A point that satisfies the strong Wolfe conditions, or the best of ``most + 1``, and the number of evaluations.

    ``size`` is the largest absolute value in the direction.
    """
    def too_high(point: Point) -> bool:
        return point.loss > start.loss + _FALL * point.t * start.slope

    def flat(point: Point) -> bool:
        return abs(point.slope) <= -_FLAT * start.slope

    # Find an interval that contains such a point.
    before, point, count = start, evaluate(t), 0
    bracket = None
    while bracket is None and count < most:
        if too_high(point) or (count > 1 and point.loss >= before.loss):
            bracket = [before, point]
        elif flat(point):
            return point, count + 1
        elif point.slope >= 0:
            bracket = [before, point]
        else:
            t = _cubic(before, point, point.t + 0.01 * (point.t - before.t), point.t * 10)
            before, point, count = point, evaluate(t), count + 1
    bracket = bracket or [start, point]
    # Narrow the interval.
    low = int(bracket[0].loss > bracket[1].loss)
    near_an_end = False
    while count < most and abs(bracket[1].t - bracket[0].t) * size >= 1e-9:
        first, last = sorted(p.t for p in bracket)
        t, room = _cubic(bracket[0], bracket[1], first, last), 0.1 * (last - first)
        if min(last - t, t - first) >= room:
            near_an_end = False
        elif near_an_end or t >= last or t <= first:
            # The second point in a row so near an end makes too little progress.
            t, near_an_end = last - room if last - t < t - first else first + room, False
        else:
            near_an_end = True
        point, count = evaluate(t), count + 1
        if too_high(point) or point.loss >= bracket[low].loss:
            bracket[1 - low] = point
            low = int(bracket[0].loss > bracket[1].loss)
            continue
        if flat(point):
            return point, count + 1
        if point.slope * (bracket[1 - low].t - bracket[low].t) >= 0:
            bracket[1 - low] = bracket[low]
        bracket[low] = point
    return bracket[low], count + 1

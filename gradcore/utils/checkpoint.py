"""Activation checkpointing: only a part's inputs are kept, and the part runs again in backward for its residuals.

Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174. The report of a step shows both what this saves
(residual bytes) and what it costs (the part's ops again, in the phase ``backward``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import ref

from gradcore._random import default_generator
from gradcore.autograd import backward
from gradcore.autograd.function import Function
from gradcore.autograd.graph import saved_tensors_hooks
from gradcore.engine.below import last_uses
from gradcore.engine.dispatch import next_number
from gradcore.engine.recipes import Again
from gradcore.engine.residuals import recalled, unpack
from gradcore.engine.saved import Deferred, Packed, Rerun, Saved, keep
from gradcore.engine.state import local
from gradcore.engine.value import Value, alias, tensors_in
from gradcore.utils._first_run import FirstRun
from gradcore.utils.selective_checkpoint import CheckpointError as CheckpointError
from gradcore.utils.selective_checkpoint import CheckpointPolicy as CheckpointPolicy
from gradcore.utils.selective_checkpoint import SelectiveCheckpointContext as SelectiveCheckpointContext
from gradcore.utils.selective_checkpoint import create_selective_checkpoint_contexts as create_selective_checkpoint_contexts

Tensor = Any

#: What :func:`set_checkpoint_early_stop` says, None outside its blocks.
_early: list[bool | None] = [None]


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Checkpoints that are called in the block, which need not enclose backward, run again in part or, if not ``enable``, as a
    whole, whatever their ``early_stop``."""
    before, _early[0] = _early[0], enable
    try:
        yield
    finally:
        _early[0] = before


def noop_context_fn() -> tuple[Any, Any]:
    """Contexts for :func:`checkpoint` that do nothing."""
    return nullcontext(), nullcontext()


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool = False, preserve_rng_state: bool = True,
               context_fn: Callable[[], tuple[Any, Any]] = noop_context_fn, determinism_check: str = "default",
               debug: bool = False, early_stop: bool = True, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, whose residuals are recomputed in backward instead of kept.

    Only the tensors among the arguments are kept. The second run keeps what a run without a checkpoint would, and each node of
    backward lets go of its share. With ``preserve_rng_state``, the second run draws the same random numbers.
    ``use_reentrant=True`` runs a backward inside the backward, as PyTorch's older form does: it takes no keyword arguments,
    and gives gradients only to its tensor arguments and the parameters behind them. Backward raises RuntimeError if only some
    gradients are asked for (``autograd.grad``, ``backward(inputs=)``), and the function uses parameters. ``context_fn`` returns
    contexts for the first and the second run, as :func:`create_selective_checkpoint_contexts` does to keep some results. The
    second run stops when all residuals are there, unless ``early_stop`` is False. Raises :class:`CheckpointError` if it keeps
    other tensors than the first.
    """
    if determinism_check not in ("default", "none"):
        raise ValueError(f"determinism_check must be 'default' or 'none', but got {determinism_check!r}")
    if use_reentrant:
        if kwargs:
            raise ValueError(f"Unexpected keyword arguments: {','.join(kwargs)}")
        if context_fn is not noop_context_fn or debug:
            raise ValueError("Passing `context_fn` or `debug` is only supported when use_reentrant=False.")
        return _Reentrant.apply(function, preserve_rng_state, *args)
    first, second = context_fn()
    if not local.state.grad:
        return function(*args, **kwargs)
    part = _Part(function, args, kwargs, preserve_rng_state, determinism_check == "default", second,
                 early_stop if _early[0] is None else _early[0])
    around = local.state.watch
    with first, saved_tensors_hooks(part.pack, part.unpack):
        if local.state.watch is not around:
            part.selected = local.state.watch.results
        result = function(*args, **kwargs)
    part.whole = True
    return result


def checkpoint_sequential(functions: Any, segments: int, input: Tensor, use_reentrant: bool = False,
                          preserve_rng_state: bool = True) -> Tensor:
    """Run modules in sequence, in ``segments`` parts, of which all but the last are checkpointed."""
    modules = list(functions.children()) if hasattr(functions, "children") else list(functions)
    if not 1 <= segments <= len(modules):
        raise ValueError(f"checkpoint_sequential: segments must be between 1 and {len(modules)}, but got {segments}")
    size = len(modules) // segments

    def run(part: Sequence[Any], x: Tensor) -> Tensor:
        for module in part:
            x = module(x)
        return x

    for k in range(segments - 1):
        input = checkpoint(run, modules[k * size:(k + 1) * size], input, use_reentrant=use_reentrant,
                           preserve_rng_state=preserve_rng_state)
    return run(modules[(segments - 1) * size:], input)


class _Promise(Deferred):
    """A placeholder for a residual that the second run will compute."""

    __slots__ = ("part", "value", "__weakref__")

    def __init__(self, part: _Part) -> None:
        self.part = part
        #: The residual that the second run's node has, which may be a recipe.
        self.value: Saved | Again | None = None

    def keeps(self) -> list[Saved | Packed | Again]:
        found = [*(held[0] for held in self.part.held if _is_kept(held)), *self.part.selected()]
        return found if self.value is None else [*found, self.value]


class _Enough(BaseException):
    """Stops the second run when all residuals have been computed."""


class _Part:
    """One checkpointed run: what is needed to run it again, and its placeholders for residuals."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], preserve: bool,
                 check: bool, context: Any, early: bool) -> None:
        self.function = function
        self.early = early
        # Through the hooks of an enclosing checkpoint, if there is one.
        self.number = next_number()
        # Those that are one object are one in the second run, too, which the function may look at.
        held = {key: self._held(a) for key, a in {id(a): a for a in (*args, *kwargs.values())}.items()}
        self.args = tuple(held[id(a)] for a in args)
        self.kwargs = {k: held[id(a)] for k, a in kwargs.items()}
        self.first = FirstRun()
        states = self.first.draws([*args, *kwargs.values()]) if preserve else []
        self.draws = [self._held(state, "the random state of checkpoint") for state in states]
        self.check = check
        self.context = context
        #: Has the first run ended? A backward inside it runs again what there has been.
        self.whole = False
        #: Gives the results of ops that a policy keeps.
        self.selected: Callable[[], Iterable[Saved | Packed]] = tuple
        self.promises: list[Any] = []
        self.specs: list[Any] = []

    def _held(self, argument: Any, name: str = "an argument of checkpoint") -> Any:
        if not isinstance(argument, Value):
            return argument
        return keep(argument, argument.edge, None, self.number, name), argument.edge is not None

    @property
    def held(self) -> tuple[Any, ...]:
        return *self.args, *self.kwargs.values(), *self.draws

    def pack(self, tensor: Tensor) -> _Promise:
        promise = _Promise(self)
        self.promises.append(ref(promise))
        self.specs.append(tensor.spec)
        return promise

    def unpack(self, promise: _Promise) -> Tensor:
        if promise.value is None:
            self._run_again()
        if promise.value is None:
            raise CheckpointError(f"checkpoint: the recomputation kept fewer tensors than the first run, {len(self.promises)}: "
                                  "the function must do the same each time")
        value = recalled(promise.value, self)
        promise.value = None
        return value

    def name(self) -> str:
        return "checkpoint"

    def _run_again(self) -> None:
        made = 0
        remade = local.state.remade
        waiting = sum(p() is not None for p in self.promises)

        def take(residual: Saved | Again) -> None:
            nonlocal made, waiting
            if made >= len(self.promises) or (self.check and not _alike(residual.spec, self.specs[made])):
                expected = self.specs[made] if made < len(self.specs) else "no more"
                raise CheckpointError("checkpoint: Recomputed values for the following tensors have different metadata than "
                                      f"during the forward pass: tensor {made} is {residual.spec}, and was {expected}")
            promise = self.promises[made]()
            made += 1
            if promise is not None:
                promise.value = residual
                if remade is not None:
                    # Its node may be no part of this pass.
                    remade.append(ref(promise))
                waiting -= 1
                if not waiting and (self.early or not self.whole):
                    raise _Enough

        shown = {key: _shown(a) for key, a in {id(a): a for a in self.held}.items()}
        args = [shown[id(a)] for a in self.args]
        kwargs = {k: shown[id(a)] for k, a in self.kwargs.items()}
        draws = [shown[id(state)] for state in self.draws]

        def run() -> None:
            with self.context:
                before, local.state.packing = local.state.packing, Rerun(take)
                try:
                    self.function(*args, **kwargs)
                except _Enough:
                    pass
                finally:
                    local.state.packing = before

        self.first.again(draws, run)


def _alike(made: Any, first: Any) -> bool:
    """Hooks outside, such as save_on_cpu, may return an argument with other strides."""
    return made.shape == first.shape and made.dtype == first.dtype


def _is_kept(held: Any) -> bool:
    """Is an argument a tensor, which is held with whether it requires a gradient?"""
    return isinstance(held, tuple) and len(held) == 2 and isinstance(held[0], (Saved, Packed))


def _shown(held: Any) -> Any:
    """An argument for the second run; a tensor that requires grad is detached, with a graph of its own."""
    if not _is_kept(held):
        return held
    kept, wants = held
    if isinstance(kept, Saved) and kept.storage.version != kept.version:
        raise kept.modified("checkpoint")
    value: Any = unpack(kept, None) if isinstance(kept, Packed) else alias(kept, None)
    value.requires_grad = wants
    return value


class _Reentrant(Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        ctx.function, ctx.first = function, FirstRun()
        ctx.plain = [None if isinstance(a, Value) else a for a in args]
        ctx.wanted = [isinstance(a, Value) and a.edge is not None for a in args]
        ctx.tensors = [k for k, a in enumerate(args) if isinstance(a, Value)]
        states = ctx.first.draws(args) if preserve else []
        ctx.save_for_backward(*[args[k] for k in ctx.tensors], *states)
        return function(*args)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        args = list(ctx.plain)
        saved = list(ctx.saved_tensors)
        draws = [saved.pop() for _ in saved[len(ctx.tensors):]]
        for k, t in zip(ctx.tensors, saved, strict=True):
            args[k] = t.detach()
            args[k].requires_grad = ctx.wanted[k]
        outputs = ctx.first.again(draws, lambda: ctx.function(*args))
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        roots = [(o, g) for o, g in zip(outputs, gradients, strict=True) if isinstance(o, Value) and o.edge is not None]
        if not roots:
            raise RuntimeError("none of output has requires_grad=True, this checkpoint() is not necessary")
        own = {args[k].edge[0] for k, wanted in enumerate(ctx.wanted) if wanted}
        if local.state.partial and not last_uses([o for o, _ in roots]).keys() <= own:
            raise RuntimeError("When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an "
                               "`inputs` parameter to .backward(), since gradients of the parameters that the function uses "
                               "would be added to .grad. Set use_reentrant=False, or call .backward() without `inputs`.")
        backward([o for o, _ in roots], [g for _, g in roots])
        return None, None, *(args[k].grad if wanted else None for k, wanted in enumerate(ctx.wanted))


def get_device_states(*args: Any) -> tuple[list[int], list[Any]]:
    """The indices of the GPUs of the tensors among ``args``, and the states of their default generators, on the CPU.

    For networks that run a part again by themselves, such as reversible ones; ``gradcore.get_rng_state()`` is the CPU's state.
    """
    gpus = {t.device.index or 0: t.device for t in tensors_in(args) if t.device.type == "cuda"}
    return list(gpus), [default_generator(gpu).get_state().cpu() for gpu in gpus.values()]


def set_device_states(devices: Sequence[int], states: Sequence[Any], *, device_type: str | None = None) -> None:
    """Let the default generators of GPUs continue from the states of :func:`get_device_states`."""
    for index, state in zip(devices, states, strict=True):
        found = default_generator(f"cuda:{index}")
        found.set_state(state.to(found.device))

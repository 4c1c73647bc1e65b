"""Selective activation checkpointing: the results of chosen ops are kept by a checkpoint, and its second run takes them.

Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, arXiv:2205.05198. Both runs see the ops of
their thread as dispatch does, so a kept result is one that the second run neither allocates nor launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from types import FunctionType
from typing import Any

from gradcore.engine.dispatch import next_number
from gradcore.engine.operands import grouped
from gradcore.engine.plans import AUX, Call, KeepPlan
from gradcore.engine.residuals import unpack
from gradcore.engine.saved import Packed, Rerun, Saved, answer, keep
from gradcore.engine.state import State, local, unwatching, where
from gradcore.engine.value import alias
from gradcore.errors import ModifiedInPlace
from gradcore.events import Site
from gradcore.ops.op import Op, all_ops, get_op

Tensor = Any
Policy = Callable[..., Any]


class CheckpointError(RuntimeError):
    """The second run of a checkpoint does something else than the first."""


class CheckpointPolicy(Enum):
    """What a policy of :func:`create_selective_checkpoint_contexts` says about one run of an op: keep what it gives, or run it
    again. ``MUST_`` and ``PREFER_`` are the same here; PyTorch's compiler overrides the latter."""

    MUST_SAVE = 0
    PREFER_SAVE = 1
    MUST_RECOMPUTE = 2
    PREFER_RECOMPUTE = 3


class SelectiveCheckpointContext:
    """What a policy is told beside the op and its operands: ``op_output``, which is what the op has given. A policy is asked in
    the first run alone, so ``is_recompute`` is False."""

    def __init__(self, *, is_recompute: bool, op_output: Any = None) -> None:
        self.is_recompute = is_recompute
        self.op_output = op_output


def create_selective_checkpoint_contexts(policy_fn_or_list: Policy | list[Any],
                                         allow_cache_entry_mutation: bool = False) -> tuple[Any, Any]:
    """Contexts for the two runs of one :func:`~gradcore.utils.checkpoint.checkpoint`, which keep the results of some ops.

    Give ``checkpoint`` the function that makes them: ``context_fn=partial(create_selective_checkpoint_contexts, ["linear"])``.
    A list has the ops to keep the results of: names as in reports (``"linear"``), ops (``gradcore.ops.linalg.matmul``), or
    gradcore's functions that have the name of an op (``gradcore.matmul``). A function is called in the first run with a
    :class:`SelectiveCheckpointContext`, the op, which has a ``name``, its operands and its attributes, and returns a
    :class:`CheckpointPolicy` or whether to keep the result. Ops that make views or write to an operand, as batch norm to its
    running statistics, always run again, and nothing is asked about them; so does one to whose result the same line writes.

    Raises ValueError for what is no such op, TypeError for another argument. Backward raises RuntimeError if a kept result has
    been written to since, unless ``allow_cache_entry_mutation``: then it computes with what is there.
    """
    if isinstance(policy_fn_or_list, list):
        policy = _saving(policy_fn_or_list)
    elif callable(policy_fn_or_list):
        policy = policy_fn_or_list
    else:
        raise TypeError("policy_fn_or_list must be either a function or a list of ops, but got "
                        f"{type(policy_fn_or_list).__name__}")
    first = _First(policy)
    return first, _Second(first, allow_cache_entry_mutation)


def _saving(ops: list[Any]) -> Policy:
    """The policy that keeps what these ops give."""
    chosen = set(map(_op_of, ops))
    return lambda ctx, op, *args, **attrs: op in chosen


def _op_of(given: Any) -> Op:
    name: Any = given
    if isinstance(given, Op):
        name = given.name
    elif isinstance(given, FunctionType) and given.__module__.startswith("gradcore."):
        name = given.__name__
    if not isinstance(name, str) or name not in all_ops():
        raise ValueError("create_selective_checkpoint_contexts: expected ops, their names as in reports, such as 'linear', "
                         "'matmul', 'conv2d' or 'attention', or gradcore's functions of such a name, but got "
                         f"{given!r} of type {type(given).__name__}")
    op = get_op(name)
    if op.view or op.writes:
        raise ValueError(f"create_selective_checkpoint_contexts: the result of {name} cannot be kept instead of computed, "
                         + ("since it is a view" if op.view else f"since it writes to {', '.join(op.writes)}"))
    return op


class _Kept:
    """What one run of an op has given: its outputs, and the auxiliary ones that its gradient reads, by position."""

    __slots__ = ("number", "site", "serials", "outputs", "aux")

    def __init__(self, number: int, site: Site, serials: set[int], outputs: list[Saved | Packed],
                 aux: dict[int, Saved | Packed]) -> None:
        #: The node that the log names as the keeper.
        self.number = number
        self.site = site
        #: Of the outputs' storages.
        self.serials = serials
        self.outputs = outputs
        self.aux = aux


#: By op, and how many times it ran before.
Results = dict[tuple[Op, int], _Kept]


class _Watch:
    """A context in which the thread's ops are run by :meth:`run`."""

    def __init__(self) -> None:
        self._counts: dict[Op, int] = {}
        self._before: Any = None
        self._around: Any = None

    def __enter__(self) -> None:
        state = local.state
        self._before = state.scope, state.watch
        # What has watched before does so no longer in a part that runs again.
        self._around = state.watch if state.scope.watched else None
        self._counts.clear()
        state.scope, state.watch = where(state.scope.plain, watched=True), self

    def __exit__(self, *error: Any) -> None:
        local.state.scope, local.state.watch = self._before
        self._before = self._around = None

    def run(self, plan: KeepPlan | None, compute: Callable[..., Any], state: State, op: Op, call: Call, *rest: Any) -> Any:
        """The outputs and the auxiliary outputs of an op, as dispatch computes them."""
        raise NotImplementedError

    def _through(self, plan: KeepPlan | None, compute: Callable[..., Any], *run: Any) -> Any:
        """The same from what watches around this."""
        return compute(*run) if self._around is None else self._around.run(plan, compute, *run)

    def _place(self, op: Op) -> tuple[Op, int]:
        count = self._counts[op] = self._counts.get(op, -1) + 1
        return op, count


class _First(_Watch):
    """Keeps what the policy chooses."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._policy = policy
        self.kept: Results = {}
        #: Has the run ended? None before it.
        self.ended: bool | None = None

    def results(self) -> Iterable[Saved | Packed]:
        """What is kept."""
        return [saved for kept in [*self.kept.values()] for saved in (*kept.outputs, *kept.aux.values())]

    def __enter__(self) -> None:
        if self.ended is not None:
            raise RuntimeError("these contexts of create_selective_checkpoint_contexts have served a checkpoint already: give "
                               "each a context_fn that makes new ones, such as partial(create_selective_checkpoint_contexts, "
                               "policy)")
        self.ended = False
        # Through the hooks of an enclosing checkpoint, if there is one.
        self._number, self._packing = next_number(), local.state.packing
        super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.ended, self._packing = True, None
        if error[0] is not None:
            self.kept.clear()

    def run(self, plan: KeepPlan | None, compute: Callable[..., Any], state: State, op: Op, call: Call, device: Any,
            args: tuple[Any, ...], *rest: Any) -> Any:
        found = outputs, aux = self._through(plan, compute, state, op, call, device, args, *rest)
        site = rest[-1][0].site
        if op.writes:
            self._let_go({args[i].storage.serial for i in call.writes}, site)
        else:
            place = self._place(op)
            if self._is_saved(op, call, args, outputs):
                slots = () if plan is None else (*plan.slots, *(slot for slot, _ in plan.again_slots))
                read = {i for kind, i, _ in slots if kind == AUX}
                self.kept[place] = _Kept(self._number, site, {t.storage.serial for t in outputs}, [*map(self._keep, outputs)],
                                         {i: self._keep(aux[i]) for i in read})
        return found

    def _let_go(self, written: set[int], site: Site) -> None:
        """Keep no result that the same line of source writes to: ``scatter`` copies its input, and writes to the copy."""
        for place, kept in [*self.kept.items()]:
            if kept.site == site and not written.isdisjoint(kept.serials):
                del self.kept[place]

    def _is_saved(self, op: Op, call: Call, args: tuple[Any, ...], outputs: list[Any]) -> bool:
        given = grouped(op, [*args], call.counts)
        while given and given[-1] is None:
            given.pop()
        context = SelectiveCheckpointContext(is_recompute=False, op_output=tuple(outputs) if call.several else outputs[0])
        said = answer(lambda _: self._policy(context, op, *given, **call.attrs), None)
        if not isinstance(said, (bool, CheckpointPolicy)):
            raise TypeError(f"the policy of create_selective_checkpoint_contexts must return a CheckpointPolicy, but returned "
                            f"{said!r} for {op.name}")
        return said in (True, CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)

    def _keep(self, value: Tensor) -> Saved | Packed:
        state = local.state
        before, state.packing = state.packing, self._packing
        try:
            return keep(value, None, None, self._number, "a result that the policy of checkpoint keeps")
        finally:
            state.packing = before


class _Second(_Watch):
    """Gives what the first run has kept in the place of what an op would compute."""

    def __init__(self, first: _First, mutable: bool) -> None:
        super().__init__()
        self._first = first
        self._mutable = mutable

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._is_last():
            # What no residual was made of, since all of them were there.
            self._first.kept.clear()

    def run(self, plan: KeepPlan | None, compute: Callable[..., Any], state: State, op: Op, call: Call, *rest: Any) -> Any:
        if not op.writes:
            place = self._place(op)
            kept = self._first.kept.get(place)
            if kept is not None:
                found = self._shown(kept, op, call, rest[-1][0].site)
                if self._is_last():
                    # For the log, as if a node had read it.
                    before, state.node = state.node, kept.number
                    del self._first.kept[place], kept
                    state.node = before
                if plan is not None and isinstance(state.packing, Rerun):
                    state.packing.found = True
                return found
        return self._through(plan, compute, state, op, call, *rest)

    def _shown(self, kept: _Kept, op: Op, call: Call, site: Site) -> tuple[list[Any], list[Any]]:
        specs = [saved.spec for saved in kept.outputs]
        if site != kept.site or specs != [*call.specs]:
            raise CheckpointError(f"checkpoint: the second run must call the same ops: it calls {op.name} at {site} for "
                                  f"{', '.join(map(str, call.specs))}, where the first has kept that of {kept.site}, "
                                  f"{', '.join(map(str, specs))}")
        aux: list[Any] = [None] * len(call.aux)
        for i, saved in kept.aux.items():
            aux[i] = self._value(saved, op, site)
        return [self._value(saved, op, site) for saved in kept.outputs], aux

    def _value(self, saved: Saved | Packed, op: Op, site: Site) -> Tensor:
        if isinstance(saved, Packed):
            with unwatching():
                return unpack(saved, None)
        storage = saved.storage
        if storage.version != saved.version and not self._mutable:
            raise ModifiedInPlace(
                f"Tensor cached during selective activation checkpoint has been mutated: {saved.spec}, which {op.name} made at "
                f"{site}, was written to at {storage.written_by.site} by {storage.written_by.op}. Let the policy keep another "
                "result, or compute with what is there now: allow_cache_entry_mutation=True")
        return alias(saved, None)

    def _is_last(self) -> bool:
        """Does the backward pass that runs let go of what its nodes keep? Outside of one, somebody looks at a graph; and one
        inside the first run is not that of the whole."""
        sweep = local.state.sweep
        return sweep is not None and not sweep.retain_graph and bool(self._first.ended)

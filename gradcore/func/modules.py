"""Modules as functions of their parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gradcore.engine.value import Value
from gradcore.functional import stack
from gradcore.nn import paths
from gradcore.nn.norm import _BatchNorm

_KINDS = ("_parameters", "_buffers")


def functional_call(module: Any, parameter_and_buffer_dicts: Mapping[str, Any] | Sequence[Mapping[str, Any]], args: Any = None,
                    kwargs: dict[str, Any] | None = None, *, tie_weights: bool = True, strict: bool = False) -> Any:
    """``module(*args, **kwargs)`` with the named parameters and buffers replaced by the given tensors.

    The module is restored afterwards. Gradients flow through the tensors, so that, for example, an update of the weights can be
    differentiated. A tensor with several names is replaced under all of them, unless ``tie_weights`` is False. ``args`` is a
    tuple, or one argument. Raises AttributeError for a path whose module does not exist, and with ``strict`` RuntimeError for
    missing or unexpected names, which are ignored otherwise. Raises ValueError for different tensors in place of one.
    """
    given: dict[str, Any] = {}
    several = [parameter_and_buffer_dicts] if isinstance(parameter_and_buffer_dicts, Mapping) else parameter_and_buffer_dicts
    if not isinstance(several, Sequence) or not all(isinstance(part, Mapping) for part in several):
        raise ValueError("functional_call: expected a dict of tensors by name, or a list or tuple of such dicts, but got "
                         f"{type(several).__name__}")
    for part in several:
        if twice := sorted(given.keys() & part.keys()):
            raise ValueError(f"{', '.join(map(repr, twice))} appear in several of the dictionaries; this is not allowed")
        given |= part
    if strict:
        _check(module, given)
    arguments = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replaced(module, given, tie_weights):
        return module(*arguments, **(kwargs or {}))


def _check(module: Any, given: Mapping[str, Any]) -> None:
    own = {name for part in (module.named_parameters, module.named_buffers) for name, _ in part(remove_duplicate=False)}
    lines = [f"\n\t{kind} key(s): {', '.join(map(repr, sorted(names)))}."
             for kind, names in (("Unexpected", given.keys() - own), ("Missing", own - given.keys())) if names]
    if lines:
        raise RuntimeError(f"Error(s) in reparametrizing for {type(module).__name__}:{''.join(lines)}")


def _places(module: Any, given: Mapping[str, Any], tied: bool) -> list[tuple[Any, str, str, Any, Any]]:
    """What is replaced: the module that has it, its table and name there, the tensor itself, and the one in its place."""
    places: dict[tuple[int, str], tuple[Any, str, str, Any, Any]] = {}
    names: dict[int, tuple[str, Any]] = {}
    for name, tensor in given.items():
        path, _, last = name.rpartition(".")
        owner = module.get_submodule(path)
        for kind in _KINDS:
            if last in owner.__dict__[kind]:
                own = owner.__dict__[kind][last]
                places[id(owner), last] = owner, kind, last, own, tensor
                first, other = names.setdefault(id(own), (name, tensor))
                if tied and own is not None and other is not tensor:
                    raise ValueError(f"functional_call: {first!r} and {name!r} are one tensor of the module, but are given "
                                     "different ones: give one of the names, or pass tie_weights=False")
    if tied:
        by_id = {id(own): tensor for *_, own, tensor in places.values() if own is not None}
        for owner in module.modules():
            for kind in _KINDS:
                for last, own in owner.__dict__[kind].items():
                    if id(own) in by_id:
                        places.setdefault((id(owner), last), (owner, kind, last, own, by_id[id(own)]))
    return [*places.values()]


@contextmanager
def _replaced(module: Any, given: Mapping[str, Any], tied: bool) -> Iterator[None]:
    places = _places(module, given, tied)
    # The layers' own parameters are named before others take their places.
    paths.tree_of(module)
    for _, kind, last, own, tensor in places:
        if kind == "_parameters" and own is not None and isinstance(tensor, Value):
            paths.stand_in(tensor, own, last)
    # Not by attribute assignment, which accepts only a Parameter in the place of one; and each way in one call, in the middle
    # of which no interrupt comes.
    tables = [table for owner, kind, *_ in places for table in (owner.__dict__[kind], owner.__dict__)]
    keys = [last for _, _, last, *_ in places for _ in range(2)]
    there = map(dict.__setitem__, tables, keys, [tensor for *_, tensor in places for _ in range(2)])
    back = map(dict.__setitem__, tables, keys, [own for *_, own, _ in places for _ in range(2)])
    try:
        deque(there, 0)
        yield
    finally:
        deque(back, 0)


def stack_module_state(models: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters and the buffers of modules of one class by name, each a stack of those of all: [models, *shape].

    Stacks of parameters are leaves. Raises RuntimeError for no modules, several classes, for modules of which some are in
    training mode, and for parameters of which some require a gradient.
    """
    if not models:
        raise RuntimeError("stack_module_state: Expected at least one model, got 0.")
    if len({m.training for m in models}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to have the same training/eval mode.")
    if len({*map(type, models)}) > 1:
        raise RuntimeError("stack_module_state: Expected all models to be of the same class, got "
                           f"{', '.join(sorted({type(m).__name__ for m in models}))}.")
    return (_stacks([dict(m.named_parameters()) for m in models]), _stacks([dict(m.named_buffers()) for m in models]))


def _stacks(members: list[dict[str, Any]]) -> dict[str, Any]:
    stacks = {}
    for name in members[0]:
        tensors = [own[name] for own in members]
        if len({t.requires_grad for t in tensors}) > 1:
            raise RuntimeError(f"Expected {name} from each model to have the same .requires_grad")
        stacks[name] = stack(tensors).detach().requires_grad_(tensors[0].requires_grad)
    return stacks


def replace_all_batch_norm_modules_(root: Any) -> Any:
    """Let all batch norms of a module, which is returned, do without running statistics, so that a call changes no buffer."""
    for module in root.modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(module, name, None)
            module.track_running_stats = False
    return root

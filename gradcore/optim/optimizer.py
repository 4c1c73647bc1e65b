"""The base class of optimizers: parameter groups, state, hooks, and the state dict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gradcore import functional
from gradcore._holders import BORROWERS
from gradcore._tensor import Tensor
from gradcore.engine import modes
from gradcore.engine.hooks import Table
from gradcore.engine.owners import retag
from gradcore.engine.state import local, mark, scoped
from gradcore.nn.parameter import clear_gradients, is_lazy
from gradcore.nn.parameters import ParameterList
from gradcore.optim.hooks import Hooked, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from gradcore.optim.own_steps import name_state, required, update_scope, whole

__all__ = ["Optimizer", "register_optimizer_step_post_hook", "register_optimizer_step_pre_hook", "required"]

Group = dict[str, Any]
#: The numbers in a parameter's state, besides tensors.
Numbers = dict[str, Any]

#: Called before each update's op with the optimizer, the group, the parameters and their new numbers. A captured program uses
#: them, since it runs the op again without the optimizer's code and must know where its numbers come from.
watchers: list[Callable[[Any, Group, list[Any], Numbers], None]] = []


class Optimizer(Hooked):
    """Base class. ``param_groups`` are dicts with ``params`` and options, ``state`` maps a parameter to a dict.

    Subclasses define ``step(closure=None)``, as in PyTorch: hooks are called around it, it runs in the phase ``optimizer``, and
    the tensors that it puts into the state count as optimizer state. Those of this package define ``_optim_update(group)``,
    which runs without a graph, and calls ``_optim_launch``.

    Raises ValueError for an empty list of parameters, a parameter that is listed twice, or one that is not a leaf, TypeError
    for anything but tensors.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.step is not Optimizer.step and not hasattr(cls.step, "step_of_subclass"):
            cls.step = whole(cls.step)  # type: ignore[method-assign]

    def __init__(self, params: Iterable[Any], defaults: Group) -> None:
        module = hasattr(params, "parameters") and not isinstance(params, ParameterList)
        if module or isinstance(params, Tensor):
            raise TypeError("params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
                            f"{type(params).__name__}{': pass its parameters()' if module else ''}")
        self.defaults = defaults
        self._optim_before, self._optim_after = Table(), Table()
        self.state: dict[Any, Any] = defaultdict(dict)
        self.param_groups: list[Group] = []
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, the dict itself; options that it lacks are the optimizer's defaults."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        params = param_group["params"]
        if isinstance(params, set):
            raise TypeError("optimizer parameters need to be organized in ordered collections, but the ordering of "
                            "tensors in sets will change between runs. Please use a list instead.")
        params = [params] if isinstance(params, Tensor) else list(params)
        # (name, parameter) pairs of named_parameters are accepted too; the names go into the state dict.
        names = [p[0] for p in params if isinstance(p, tuple)]
        if names and len(names) != len(params):
            raise ValueError("all optimizer params should be with/without names. Some param names are missing")
        has_names = bool(names) or "param_names" in param_group
        if any(has_names != ("param_names" in group) for group in self.param_groups):
            raise ValueError("all optimizer param groups should be with/without names. cannot add param group "
                             f"{'with' if has_names else 'without'} names to the optimizer")
        params = [p[1] if isinstance(p, tuple) else p for p in params]
        seen = {id(p) for p in self._optim_parameters()}
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
            if not p.is_leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
            if id(p) in seen:
                raise ValueError("some parameters appear in more than one parameter group, or twice in one")
            seen.add(id(p))
        options = {**({"param_names": names} if names else {}), **self.defaults}
        for name in (name for name, value in options.items() if value is required and name not in param_group):
            raise ValueError(f"parameter group didn't specify a value of required optimization parameter {name}")
        # As in PyTorch, the caller's dict is the group: a rate that is set in it later counts.
        param_group["params"] = params
        for name, value in options.items():
            param_group.setdefault(name, value)
        self.param_groups.append(param_group)
        for p in params:
            if not is_lazy(p) and p.storage.block.tag.role in ("output", "input"):
                retag(p, role="parameter")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients to None, or fill them with zeros."""
        # Without another method, which a trace would take to read the groups for an update.
        for group in self.param_groups:
            clear_gradients(group["params"], set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient. ``closure`` recomputes the loss, which is returned."""
        self._opt_called = True
        if self._optim_inside:
            # The subclass's step, which called this one, does the rest.
            return self._optim_compute(closure)
        if self._optim_unnamed:
            self._optim_unnamed = name_state(self.state)
        given = self._optim_call_before((self,) if closure is None else (self, closure), {})
        closure = given[0][1] if len(given[0]) > 1 else given[1].get("closure")
        loss = _loss_of(closure)
        mark("begin", "optimizer")
        state = local.state
        before = state.grad, state.scope
        try:
            state.grad = False
            state.scope = update_scope(state.scope)
            for group in self.param_groups:
                self._optim_update(group)
        finally:
            state.grad, state.scope = before
            mark("end", "optimizer")
        self._optim_call_after(*given)
        return loss

    #: Has it taken a step? PyTorch's name, which some scripts set to silence the warning of schedules.
    _opt_called = False
    #: Is a step that a subclass defines running, around this class's?
    _optim_inside = False
    #: May there be state without the layer of its parameter, which had none yet when it was loaded or copied?
    _optim_unnamed = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        # As in PyTorch, a copy, which has none of its attributes yet, gets no hooks; loading, which ends here too, leaves them.
        copied = "_optim_before" not in self.__dict__
        self.__dict__.update(state, _optim_unnamed=True)
        if copied:
            self.__dict__.update(_optim_before=Table(), _optim_after=Table(), _optim_of_state={})

    def _optim_compute(self, closure: Callable[[], Any] | None) -> Any:
        """The loss of the closure, and the updates."""
        loss = _loss_of(closure)
        with modes.no_grad():
            for group in self.param_groups:
                self._optim_update(group)
        return loss

    def _optim_update(self, group: Group) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no step()")

    #: The numbers in a parameter's state, with their initial values. Parameters with different numbers take separate ops.
    _optim_numbers: Numbers = {}

    #: The options that are only operands of the update's op: the ops of a step depend on them by :meth:`_optim_decisive` alone.
    _optim_free: tuple[str, ...] = ("lr",)

    @staticmethod
    def _optim_decisive(group: Group) -> Any:
        """What decides which ops update the group, of the options in :attr:`_optim_free`."""
        return None

    @staticmethod
    def _optim_operands(group: Group, numbers: Numbers) -> tuple[Any, ...]:
        """The op's arguments after its tensors. ``numbers`` are those of this step; changes made to them are stored."""
        return (group["lr"],)

    @classmethod
    def _optim_advanced(cls, numbers: Numbers) -> Numbers:
        """A parameter's numbers for this step, from those of the previous one."""
        found: Numbers = {name: numbers.get(name, first) for name, first in cls._optim_numbers.items()}
        if "step" in found:
            found["step"] = int(found["step"]) + 1
        return found

    def _optim_launch(self, op: Any, group: Group, numbers: Numbers, params: list[Any], *lists: Any, **options: Any) -> None:
        """Run the update's op; the numbers in the parameters' state change only when it has succeeded.

        A parameter that is not contiguous comes alone (:func:`apart`): the kernels write to contiguous ones.
        """
        strided = None if params[0].spec.contiguous else params[0]
        # Before the watchers are told, since for them the next op is the update.
        whole = params if strided is None else [functional.clone(strided)]
        if watchers:
            # The op would do it, as of gradients that the user has assigned.
            lists = tuple([x if x.spec.contiguous else functional.clone(x) for x in tensors] for tensors in lists)
        for watcher in watchers:
            watcher(self, group, params, numbers)
        op(whole, *lists, *map(scalar, self._optim_operands(group, numbers)), **options)
        if strided is not None:
            strided.copy_(whole[0])
        for p in params if numbers else ():
            self.state[p].update(numbers)

    # -- saving --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state in PyTorch's layout: ``state`` by the parameter's index, ``param_groups`` with indices as ``params``."""
        self._optim_call_state_hooks("before saving")
        position = {id(p): k for k, p in enumerate(self._optim_parameters())}
        groups = [{**group, "params": [position[id(p)] for p in group["params"]]} for group in self.param_groups]
        state = {position[id(p)] if isinstance(p, Tensor) else p: dict(s) if isinstance(s, dict) else s
                 for p, s in self.state.items()}
        found: dict[str, Any] = self._optim_call_state_hooks("after saving", {"state": state, "param_groups": groups})
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load options and copies of state from a :meth:`state_dict` of gradcore or PyTorch.

        Raises KeyError for another kind of dict, ValueError for other groups, and for state of another shape than its
        parameter; then nothing is changed.
        """
        self._optim_load(self._optim_call_state_hooks("before loading", dict(state_dict)))
        self._optim_call_state_hooks("after loading")

    def _optim_load(self, state_dict: dict[str, Any]) -> None:
        if not {"state", "param_groups"} <= state_dict.keys():
            raise KeyError("the state dict of an optimizer has 'state' and 'param_groups', but this one has "
                           f"{list(state_dict)[:8]}")
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError(f"loaded state dict has a different number of parameter groups: {len(groups)}, and the "
                             f"optimizer has {len(self.param_groups)}")
        for own, given in zip(self.param_groups, groups, strict=True):
            if len(own["params"]) != len(given["params"]):
                raise ValueError("loaded state dict contains a parameter group that doesn't match the size of "
                                 f"optimizer's group: {len(given['params'])} and {len(own['params'])}")
        of = dict(zip((k for g in groups for k in g["params"]), self._optim_parameters(), strict=True))
        state: dict[Any, Any] = defaultdict(dict)
        for key, values in state_dict["state"].items():
            if key in of:
                state[of[key]] = {name: self._optim_loaded(of[key], name, value) for name, value in values.items()}
            elif isinstance(key, str):
                # What an optimizer keeps beside its parameters' state.
                state[key] = values
        # As in PyTorch, in dicts of the optimizer's own: the caller's, which another optimizer may have, stay as they are.
        merged = [{**own, **{k: _option(v) for k, v in given.items() if k != "params"}}
                  for own, given in zip(self.param_groups, groups, strict=True)]
        # By the method in which a program's optimizer gives older groups the options that they lack.
        self.__setstate__({"state": state, "param_groups": merged})

    def _optim_parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _optim_shape_of(self, p: Tensor, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor in the state of ``p``; None for a number."""
        return None if name in self._optim_numbers else p.spec.shape

    def _optim_loaded(self, p: Tensor, name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._optim_loaded(p, name, v) for key, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)([self._optim_loaded(p, name, v) for v in value])
        ours = isinstance(value, Tensor)
        if not ours and not isinstance(value, np.ndarray) and not hasattr(value, "detach"):
            return value
        if not ours:
            value = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
        own, shape = type(self).step is not Optimizer.step, self._optim_shape_of(p, name)
        # PyTorch keeps counts as 0-d tensors.
        if value.ndim == 0 and not own and shape != ():
            return value.item()
        if tuple(value.shape) != shape and not own:
            raise ValueError(f"loaded state {name!r} has shape {list(value.shape)}, and that of its parameter, "
                             f"{list(p.spec.shape)}, has {None if shape is None else list(shape)}")
        with state_of(p), modes.no_grad():
            return (functional.clone(value.detach().to(device=p.device, dtype=p.dtype)) if ours else
                    functional.tensor(value, dtype=p.dtype, device=p.device))

    def __repr__(self) -> str:
        lines = []
        for k, group in enumerate(self.param_groups):
            lines += ["", f"Parameter Group {k}", *(f"    {key}: {group[key]}" for key in sorted(group) if key != "params")]
        return f"{type(self).__name__} (\n" + "\n".join(lines[1:]) + "\n)"


BORROWERS.add(Optimizer)


def _loss_of(closure: Callable[[], Any] | None) -> Any:
    """The loss that a closure recomputes, with a graph; None without one."""
    if closure is None:
        return None
    with modes.enable_grad():
        return closure()


def _option(value: Any) -> Any:
    """A loaded option. A tensor, as a learning rate may be, is a copy: a schedule writes to it."""
    if isinstance(value, Tensor):
        return functional.clone(value.detach())
    return functional.tensor(value.detach().cpu().numpy()) if hasattr(value, "detach") else value


def scalar(x: Any) -> Any:
    """A number, or a tensor of one element without its dimensions, which a rate may have."""
    return functional.reshape(x, ()) if isinstance(x, Tensor) and x.spec.ndim else x


def apart(p: Tensor) -> int:
    """0 for parameters that one op may update together; one that is not contiguous may share elements with another."""
    return 0 if p.spec.contiguous else id(p)


def state_of(p: Tensor, role: str | None = "optimizer state") -> Any:
    """A context in which allocations count as optimizer state of ``p``'s layer, or as ``role``."""
    return scoped(like=p.storage.block.tag, phase="optimizer", role=role)


def state_like(p: Tensor) -> Tensor:
    """Zeros like ``p``, allocated as optimizer state."""
    with state_of(p):
        zeros: Tensor = functional.zeros_like(p)
    return zeros

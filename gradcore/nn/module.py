"""The base class of all layers: modules form a tree that owns parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from sys import _getframe
from types import FunctionType
from typing import Any, TypeVar

from gradcore._tensor import Tensor
from gradcore.arguments import take_none
from gradcore.blame import blame_tensor
from gradcore.engine import owners
from gradcore.engine.sites import find_site, is_inside
from gradcore.engine.state import local
from gradcore.nn import paths
from gradcore.nn._state_dict import Stateful
from gradcore.nn.converted import Converted
from gradcore.nn.hooks import Hooked
from gradcore.nn.members import KINDS, Asked, members
from gradcore.nn.named import Named
from gradcore.nn.parameter import Buffer, Parameter, clear_gradients

M = TypeVar("M", bound="Module")

_calls = paths.calls


class Module(Converted, Hooked, Named, Stateful):
    """A function with parameters. Subclasses define ``forward``; memory allocated in a call belongs to the module's layer.

    ``_parameters``, ``_buffers`` and ``_modules`` show what the module has, in order. They are dicts in the instance's
    ``__dict__``, where the values are attributes, too, so that reading ``self.weight`` runs no Python code.
    """

    training: bool
    _parameters = members("_parameters")
    _buffers = members("_buffers")
    _modules = members("_modules")
    #: Names of the buffers that are not persistent.
    _non_persistent_buffers_set: set[str]
    #: The module's place in each tree.
    _module_places: dict[paths.Tree | None, paths.Place]
    _module_tree: paths.Tree | None
    #: How many modules are older, which numbers the networks of a class by age.
    _module_number: int
    #: Weak references to the modules that it is or has been a child of.
    _module_parents: list[Any]
    #: Whether a call may run code from outside gradcore: a ``forward`` or another method that a subclass defines, a ``forward``
    #: or a hook of this module alone, or a function that it was given.
    _module_foreign = False
    #: Names of the attributes that :meth:`extra_repr` shows, with spaces between them.
    _module_in_repr = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        Asked.add(cls, Module)
        methods = (cls.forward, *(f for f in vars(cls).values() if isinstance(f, FunctionType)))
        cls._module_foreign = cls._module_foreign or not all(is_inside(getattr(f, "__code__", None)) for f in methods)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        take_none(self, args, kwargs)
        self.__dict__.update(training=True, _parameters={}, _buffers={}, _modules={}, _non_persistent_buffers_set=set(),
                             _module_places={}, _module_tree=None, _module_parents=[], _module_number=next(paths.numbers))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f'Module [{type(self).__name__}] is missing the required "forward" function')

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            place = self._module_places.get(_calls.tree)
        except AttributeError:
            raise AttributeError(f"cannot call {type(self).__name__} before Module.__init__(): its __init__ must begin with "
                                 "super().__init__()") from None
        if place is None:
            return paths.call_outermost(_call, self, args, kwargs)
        state = local.state
        before, site = state.scope, state.site
        try:
            state.scope = place[before]
            # Only a user's code has lines of its own to report; ops of a gradcore layer are attributed to the calling line.
            if self._module_foreign:
                state.site = None
            elif site is None:
                state.site = find_site(_getframe(1))
            return self.forward(*args, **kwargs) if self._module_hooks is None else self._module_run_forward(args, kwargs)
        except AttributeError as error:
            blame_tensor(type(self).__name__, error, (*args, *kwargs.values()))
            raise
        finally:
            state.scope = before
            state.site = site

    #: By PyTorch's name, for subclasses whose ``__call__`` calls it.
    _call_impl = __call__

    # -- parameters, buffers and children ------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        own, given = self.__dict__, type(value).__name__
        if isinstance(value, (Buffer, Parameter, Module)) and "_modules" not in own:
            kind = "parameters" if isinstance(value, Parameter) else "buffer" if isinstance(value, Buffer) else "module"
            raise AttributeError(f"cannot assign {kind} before Module.__init__() call")
        if isinstance(value, Parameter):
            paths.require_name("parameter", name)
            self._module_put("_parameters", name, value)
        elif name in own.get("_parameters", ()):
            if value is not None:
                raise TypeError(f"cannot assign '{given}' as parameter '{name}' (gradcore.nn.Parameter or None expected)")
            self._module_put("_parameters", name, None)
        elif isinstance(value, Module):
            self._module_put("_modules", name, value)
        elif getattr(type(value), "_wraps_module", False):  # compiled: calls go through the wrapper
            self._module_put("_modules", name, value.__wrapped__)
            own[name] = value
        elif name in own.get("_modules", ()):
            if value is not None:
                raise TypeError(f"cannot assign '{given}' as child module '{name}' (gradcore.nn.Module or None expected)")
            self._module_put("_modules", name, None)
        elif isinstance(value, Buffer) or name in own.get("_buffers", ()):
            if value is not None and not isinstance(value, Tensor):
                raise TypeError(f"cannot assign '{given}' as buffer '{name}' (gradcore.Tensor or None expected)")
            if value is not None:
                owners.retag(value, role="buffer")
            self._module_put("_buffers", name, value)
            if isinstance(value, Buffer):
                (self._non_persistent_buffers_set.discard if value.persistent else self._non_persistent_buffers_set.add)(name)
        else:
            object.__setattr__(self, name, value)
            if name == "forward":
                own["_module_foreign"] = True

    def _module_put(self, kind: str, name: str, value: Any) -> None:
        for other in KINDS:
            if other != kind and name in self.__dict__[other]:
                del self.__dict__[other][name]
                self._non_persistent_buffers_set.discard(name)
        self.__dict__[kind][name] = value
        self.__dict__[name] = value
        if self._module_places:
            paths.structure_changed()
        if isinstance(value, Module):
            paths.adopted(value, self)

    def __delattr__(self, name: str) -> None:
        for kind in KINDS:
            if name in self.__dict__[kind]:
                del self.__dict__[kind][name]
                self._non_persistent_buffers_set.discard(name)
                if self._module_places:
                    paths.structure_changed()
                # Not by object.__delattr__: a property of the class by that name, which hides the member, may have no deleter.
                self.__dict__.pop(name, None)
                return
        object.__delattr__(self, name)

    def _module_register(self, kind: str, name: str, value: Any, expected: type) -> None:
        what = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "module"}[kind]
        if "_modules" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before Module.__init__() call")
        paths.require_name(what, name)
        if hasattr(self, name) and name not in self.__dict__[kind]:
            raise KeyError(f"attribute '{name}' already exists")
        if value is not None and not isinstance(value, expected):
            raise TypeError(f"cannot assign '{type(value).__name__}' object to {what} '{name}' "
                            f"(gradcore {expected.__name__} or None required)")
        self._module_put(kind, name, value)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter. Raises KeyError for a name that is taken, empty or contains a dot."""
        self._module_register("_parameters", name, param, Parameter)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is not a parameter; ``persistent`` ones are in the state dict."""
        self._module_register("_buffers", name, tensor, Tensor)
        if tensor is not None:
            owners.retag(tensor, role="buffer")
        (self._non_persistent_buffers_set.discard if persistent else self._non_persistent_buffers_set.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule. Raises KeyError for a name that is taken, empty or contains a dot, TypeError for no module."""
        self._module_register("_modules", name, module, Module)

    register_module = add_module

    def named_modules(self, memo: set[int] | None = None, prefix: str = "",
                      remove_duplicate: bool = True) -> Iterator[tuple[str, Module]]:
        """Every module of the tree with its path, ``""`` for the root; a module that occurs twice is listed once, or with
        ``remove_duplicate=False`` at each of its paths."""
        memo = set() if memo is None else memo
        if id(self) not in memo:
            if remove_duplicate:
                memo.add(id(self))
            yield prefix, self
            for name, child in self.__dict__["_modules"].items():
                if child is not None:
                    yield from child.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """Every module of the tree, itself first; one that occurs twice is listed once."""
        return (m for _, m in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct submodules with their names; one that occurs twice is listed once."""
        seen = set()
        for name, child in self.__dict__["_modules"].items():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                yield name, child

    def children(self) -> Iterator[Module]:
        """The direct submodules; one that occurs twice is listed once."""
        return (m for _, m in self.named_children())

    def _named_members(self, get_members_fn: Callable[[Any], Iterable[tuple[str, Any]]], prefix: str = "",
                       recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, Any]]:
        """What a function finds in each module, with paths; by PyTorch's name, which subclasses call."""
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, value in get_members_fn(module):
                if value is not None and id(value) not in seen:
                    if remove_duplicate:
                        seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def named_parameters(self, prefix: str = "", recurse: bool = True,
                         remove_duplicate: bool = True) -> Iterator[tuple[str, Parameter]]:
        """The parameters of the tree with their paths behind ``prefix``, or with ``recurse=False`` of this module alone.

        One that occurs twice is listed once, or with ``remove_duplicate=False`` at each of its paths.
        """
        return self._named_members(lambda module: module.__dict__["_parameters"].items(), prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of the tree, or of this module alone; one that occurs twice is listed once."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True,
                      remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
        """The buffers of the tree with their paths behind ``prefix``, or with ``recurse=False`` of this module alone.

        One that occurs twice is listed once, or with ``remove_duplicate=False`` at each of its paths.
        """
        return self._named_members(lambda module: module.__dict__["_buffers"].items(), prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of the tree, or of this module alone; one that occurs twice is listed once."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    # -- modes ---------------------------------------------------------------------------------------------------------

    def train(self: M, mode: bool = True) -> M:
        """Set training mode (or evaluation) for the whole tree, which dropout and batch norm, for example, depend on."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        # By their own methods, since layers that stay in one mode override them.
        for child in self.children():
            child.train(mode)
        return self

    def eval(self: M) -> M:
        """Set evaluation for the whole tree: :meth:`train` with False."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Let the parameters of the whole tree take part in gradients, or not."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        paths.structure_changed()  # a new leaf has no name yet
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None, or fill them with zeros."""
        clear_gradients(self.parameters(), set_to_none)

    def apply(self: M, fn: Callable[[Module], None]) -> M:
        """Call ``fn`` on every module, children first."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # -- repr ----------------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """The text in the parentheses of ``repr``."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self._module_in_repr.split())

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): " + repr(child).replace("\n", "\n  ") for name, child in self._modules.items()]
        if not children and len(lines) <= 1:
            return f"{self._get_name()}({''.join(lines)})"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines + children) + "\n)"


#: As it is here, whatever a program puts in its place.
_call = Module.__call__


class Family(Module):
    """Base of layers that differ in what their class statements say: ``class Conv2d(_Plain, function=F.conv2d, dims=2)``."""

    #: What ``forward`` calls.
    _module_function: Callable[..., Any]
    #: The number of spatial dimensions, or the numbers of dimensions that the input may have.
    _module_dims: Any = 1
    #: What padding is made of.
    _module_mode = "constant"

    def __init_subclass__(cls, *, function: Callable[..., Any] | None = None, dims: Any = None, mode: str = "",
                          **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if function is not None:
            cls._module_function = staticmethod(function)
        cls._module_dims = cls._module_dims if dims is None else dims
        cls._module_mode = mode or cls._module_mode


def unusual(module: Module, **usual: Any) -> str:
    """The text ``, name=value`` of each attribute whose value is not the usual one."""
    return "".join(f", {k}={getattr(module, k)}" for k, value in usual.items() if getattr(module, k) != value)

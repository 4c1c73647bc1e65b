"""A tensor's methods for the graph: ``requires_grad``, ``grad``, ``backward``, and hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from warnings import warn
from weakref import ref

from gradcore.engine import derived  # noqa: F401 - registers the rules of fused gradients
from gradcore.engine.backward import run_backward
from gradcore.engine.below import GradientEdge, behind, captures_of
from gradcore.engine.hooks import RemovableHandle, hang, hooks_of
from gradcore.engine.leaf import Leaf
from gradcore.engine.node import Node
from gradcore.engine.owners import retag, retag_gradient
from gradcore.engine.state import local
from gradcore.engine.tracer import tracer_of
from gradcore.engine.value import Edge, Value, alias
from gradcore.engine.views import seen_base
from gradcore.errors import DeviceError, SpecError
from gradcore.events import LASTING


def backward_of(roots: Sequence[Any], gradients: Sequence[Any], retain_graph: bool | None, create_graph: bool,
                inputs: Any) -> None:
    """Add the gradients of ``roots`` to the leaves, or only to ``inputs``, a tensor or an iterable of tensors, or edges."""
    captures = None
    if inputs is not None:
        wanted: list[Any] = [inputs] if isinstance(inputs, (Value, GradientEdge)) else list(inputs)
        if not wanted:
            raise RuntimeError("'inputs' argument to 'backward' cannot be empty.")
        captures = captures_of("backward", wanted)
        for x in wanted:
            if not isinstance(x, GradientEdge) and not x.is_leaf:
                x.retain_grad()
    run_backward(roots, gradients, retain_graph=retain_graph, create_graph=create_graph, captures=captures,
                 accumulating=True, partial=captures is not None)


class Gradients(Value):
    """The attributes ``requires_grad`` and ``grad``, ``backward`` and similar methods."""

    __slots__ = ()

    @property
    def requires_grad(self) -> bool:
        """Does backward compute a gradient for this tensor? Can be set on leaves."""
        return self.edge is not None

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if wanted == self.requires_grad:
            return
        if wanted:
            if not self.spec.floating:
                raise RuntimeError(f"only Tensors of floating point dtype can require gradients, but this one is "
                                   f"{self.spec.dtype.name}")
            self.edge = self._thawed() or (Leaf(self), 0)
            self.edge[0].frozen = False
        elif not self.is_leaf:
            raise RuntimeError("you can only change requires_grad flags of leaf variables. If you want to use a computed "
                               "variable in a subgraph that doesn't require differentiation use var_no_grad = "
                               "var.detach().")
        else:
            # The leaf is kept, with its gradient, since existing graphs still lead to it.
            self._frozen_edge, self.edge = self.edge, None
            self._frozen_edge[0].frozen = True

    def _thawed(self) -> Edge | None:
        """The edge to the leaf that the tensor had before ``requires_grad`` was set to False, or None.

        It is the same object again, so that the guards of compiled functions find the tensor as it was.
        """
        edge: Edge | None = getattr(self, "_frozen_edge", None)
        if edge is not None:
            edge[0].spec, edge[0].device = self.spec, self.storage.device
        return edge

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Set ``requires_grad``; returns the tensor."""
        self.requires_grad = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:
        """Was it made by no op of a graph? Backward adds to the ``grad`` of leaves that require one."""
        return self.edge is None or type(self.edge[0]) is Leaf

    @property
    def grad_fn(self) -> Node | None:
        """The node of the op that made the tensor; None for a leaf."""
        node = None if self.edge is None else behind(self.edge)[0]
        return node if type(node) is Node else None

    @property
    def grad(self) -> Any:
        """The accumulated gradient of a leaf, None before the first backward; for other tensors after :meth:`retain_grad`."""
        edge = self.edge
        if edge is None:
            edge = getattr(self, "_frozen_edge", None)
            return None if edge is None else edge[0].grad
        if type(edge[0]) is Leaf:
            return edge[0].grad
        # A backward with inputs= leaves it at the identity that marks the end of a traced graph.
        kept = None if edge[0].hooks is None else edge[0].hooks.retained.get(edge[1])
        node, index = behind(edge)
        if kept is not None:
            return kept
        if type(node) is Leaf:
            return node.grad
        if node.hooks is None or index not in node.hooks.retained:
            warn("The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute won't be "
                 "populated during autograd.backward(). If you indeed want the .grad field to be populated for a non-leaf "
                 "Tensor, use .retain_grad() on the non-leaf Tensor.", UserWarning, stacklevel=2)
            return None
        return node.hooks.retained[index]

    @grad.setter
    def grad(self, value: Any) -> None:
        if self.edge is None and value is not None:
            self._frozen_edge = self._thawed() or (Leaf(self), 0)
        edge = self._thawed() if self.edge is None else self.edge
        leaf = None if edge is None else edge[0]
        if type(leaf) is not Leaf:
            if value is not None:
                raise RuntimeError("the gradient of a tensor can be set only on a leaf that requires grad")
            if edge is not None:
                self._forget(edge)
            return
        if value is not None:
            if value is self:
                raise RuntimeError("can't assign Variable as its own grad")
            if not isinstance(value, Gradients):
                raise TypeError(f"assigned grad must be a Tensor or None, but got {type(value).__name__}")
            if value.spec.shape != self.spec.shape or value.spec.dtype != self.spec.dtype:
                raise SpecError(f"assigned grad has data of a different size or type: {value.spec} for {self.spec}")
            if value.storage.device.compute is not self.storage.device.compute:
                raise DeviceError(f"assigned grad is on {value.storage.device} and the tensor on {self.storage.device}")
            if value.storage.block.tag.role not in LASTING:
                # Memory that is already somebody's, such as the optimizer's, stays so.
                retag_gradient(value, self)
        lender = None if leaf.grad is None else leaf.grad.storage.lender
        leaf.grad = value
        if lender is not None:
            lender.let_go(leaf)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def _forget(self, edge: Edge) -> None:
        """Drop the gradient that :meth:`retain_grad` kept, or backward for an input; the next one is kept again."""
        for node, index in (edge, behind(edge)):
            if type(node) is Node and node.hooks is not None and index in node.hooks.retained:
                node.hooks.retained[index] = None

    def backward(self, gradient: Any = None, retain_graph: bool | None = None,
                 create_graph: bool = False, inputs: Any = None) -> None:
        """Add the gradients of this tensor to the leaves that it was computed from, or only to ``inputs``, leaves or not.

        Each node's residuals are released as soon as the node has run, unless ``retain_graph``. Raises RuntimeError for a
        tensor without a graph, for a non-scalar without ``gradient``, and for a second run through a graph whose residuals
        have been released.
        """
        if gradient is not None and not isinstance(gradient, Value):
            raise TypeError(f"backward: gradient must be a Tensor or None, but got {type(gradient).__name__}")
        backward_of([self], [gradient], retain_graph, create_graph, inputs)

    def detach(self) -> Any:
        """A tensor with the same memory and without a graph."""
        log = self.storage.device.ledger.log
        if log is not None and (tracer := tracer_of(log)) is not None:
            tracer.detached(self)
        return alias(self, None)

    def detach_(self) -> Any:
        """Leave the graph; a leaf requires no gradient from here on. Returns the tensor.

        Raises RuntimeError for a view, which a write to its base would bring back into the graph.
        """
        if seen_base(self) is not None:
            raise RuntimeError("Can't detach views in-place. Use detach() instead.")
        if self.edge is not None and type(self.edge[0]) is Leaf:
            self.requires_grad = False
        self.edge = None
        return self

    @property
    def data(self) -> Any:
        """The same memory without the graph, as :meth:`detach`; set it to give the tensor other memory."""
        found, bare = self.detach(), local.state.bare
        if bare is not None and (self.edge is None or type(self.edge[0]) is not Leaf):
            bare[id(found)] = ref(found)
        return found

    @data.setter
    def data(self, value: Any) -> None:
        if not isinstance(value, Gradients):
            raise TypeError(f"data must be a Tensor, but got {type(value).__name__}")
        if value.spec.dtype != self.spec.dtype and self.requires_grad and not value.spec.floating:
            raise SpecError(f"data of {self.spec.dtype.name} that requires grad cannot become {value.spec.dtype.name}")
        before, given = self.storage.block.tag, value.storage.block.tag
        if before.role in LASTING and given.role not in LASTING:
            retag(value, role=before.role, layer=before.layer, network=before.network)
        self.storage, self.spec, self.array = value.storage, value.spec, value.array
        if self.edge is None:
            return
        target = self.edge[0]
        if type(target) is Leaf:
            target.spec, target.device = value.spec, value.storage.device
        else:
            # What ops read from now on is not what the node would recompute.
            target.recipe = None

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def register_hook(self, hook: Callable[[Any], Any]) -> RemovableHandle:
        """Call ``hook(grad)`` when this tensor's gradient is complete; a tensor that it returns replaces the gradient.

        Raises RuntimeError for a tensor that requires no gradient.
        """
        if self.edge is None:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        return hang(hooks_of(self.edge[0]).tensor, (self.edge[1], hook))

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], None]) -> RemovableHandle:
        """Call ``hook(tensor)`` when backward has accumulated a leaf's whole gradient; an optimizer may step in the hook.

        Raises RuntimeError for a tensor that is not a leaf or requires no gradient.
        """
        if self.edge is None or type(self.edge[0]) is not Leaf:
            raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors" if self.edge else
                               "cannot register a hook on a tensor that doesn't require gradient")
        return hang(hooks_of(self.edge[0]).accumulated, (ref(self), hook))

    def retain_grad(self) -> None:
        """Let backward keep the gradient of this tensor in ``grad``, as it does for leaves."""
        if self.edge is None:
            raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
        if type(self.edge[0]) is not Leaf:
            hooks_of(self.edge[0]).retain(self.edge[1], self)

    @property
    def retains_grad(self) -> bool:
        """Has :meth:`retain_grad` been called on this tensor, and is it not a leaf?"""
        edge = None if self.edge is None else behind(self.edge)
        return (edge is not None and type(edge[0]) is Node and edge[0].hooks is not None
                and edge[1] in edge[0].hooks.retained)

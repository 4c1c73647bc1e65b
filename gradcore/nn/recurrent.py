"""Recurrent networks (RNN, LSTM, GRU) of one or more layers and directions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gradcore.arguments import warn
from gradcore.errors import SpecError
from gradcore.functional import empty, index_select, narrow, squeeze, transpose, unsqueeze, zeros
from gradcore.functional.recurrent import STEPS, State
from gradcore.nn import init
from gradcore.nn.layered import apart, through
from gradcore.nn.module import Module, unusual
from gradcore.nn.parameter import Parameter
from gradcore.nn.utils.rnn import PackedSequence

__all__ = ["GRU", "LSTM", "RNN", "RNNBase"]

Tensor = Any


def need_states(module: Any, hx: State, tensors: int, shape: tuple[int, ...], width: int = 0) -> None:
    """Raise an error for initial states that are not ``tensors`` tensors of ``shape``; the first may have another ``width``."""
    if not isinstance(hx, (tuple, list)) or len(hx) != tensors:
        given = f"a {type(hx).__name__}" + (f" of {len(hx)}" if isinstance(hx, (tuple, list)) else "")
        raise TypeError(f"{type(module).__name__}: the initial state must be a pair of tensors (h, c), but got {given}")
    for name, h, expected in zip(("h", "c"), hx, ((*shape[:-1], width or shape[-1]), shape), strict=False):
        if h.spec.shape != expected:
            raise SpecError(f"{type(module).__name__}: Expected hidden size {expected}, got {list(h.spec.shape)} for {name}")


def apply_permutation(tensor: Tensor, permutation: Tensor, dim: int = 1) -> Tensor:
    """A state with its sequences in another order."""
    return index_select(tensor, dim, permutation)


class Recurrent(Module):
    hidden_size: int

    def reset_parameters(self) -> None:
        """Draw all parameters uniformly in +-1/sqrt(hidden_size), as in PyTorch."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for p in self.parameters():
            init.uniform_(p, -bound, bound)


class RNNBase(Recurrent):
    """Stacked recurrent layers, with PyTorch's parameter names: ``weight_ih_l0``, ..., ``weight_ih_l0_reverse``, ...

    The input is [L, N, in], or [N, L, in] with ``batch_first``, or [L, in], or packed sequences, which give packed outputs.
    States are [layers * directions, N, H], zeros by default.
    """

    def __init__(self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if mode not in STEPS:
            raise ValueError(f"Unrecognized RNN mode: {mode}, expected one of {', '.join(STEPS)}")
        self.mode = mode
        if not isinstance(bias, bool):
            raise TypeError(f"bias should be of type bool, got: {type(bias).__name__}")
        if proj_size and mode != "LSTM":
            raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")
        if proj_size < 0:
            raise ValueError(f"proj_size should be a positive integer or zero to disable projections, but got {proj_size}")
        for name, count in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            if count <= 0:
                raise ValueError(f"{name} must be greater than zero, but got {count}")
        if isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError("dropout should be a number in range [0, 1] representing the probability of an element being "
                             f"zeroed, but got {dropout}")
        if dropout and num_layers == 1:
            warn("dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects num_layers "
                 f"greater than 1, but got dropout={dropout} and num_layers={num_layers}")
        if proj_size >= hidden_size:
            raise ValueError(f"proj_size has to be smaller than hidden_size, but got {proj_size} and {hidden_size}")
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.proj_size = proj_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self._module_gates, self._module_tensors, _ = STEPS[mode]
        self._all_weights: list[list[str]] = []
        width, out = self._module_gates * hidden_size, proj_size or hidden_size
        biases = {"bias_ih": (width,), "bias_hh": (width,)} if bias else {}
        projection = {"weight_hr": (proj_size, hidden_size)} if proj_size else {}
        for layer in range(num_layers):
            inputs = input_size if not layer else out * (1 + bidirectional)
            shapes = {"weight_ih": (width, inputs), "weight_hh": (width, out), **biases, **projection}
            for suffix in ("", "_reverse")[:1 + bidirectional]:
                names = {f"{name}_l{layer}{suffix}": shape for name, shape in shapes.items()}
                for name, shape in names.items():
                    self.register_parameter(name, Parameter(empty(*shape, device=device, dtype=dtype)))
                self._all_weights.append(list(names))
        self.reset_parameters()

    def flatten_parameters(self) -> None:
        """Does nothing; in PyTorch it is a hint for cuDNN."""

    def _module_start(self, hx: State | None, x: Tensor, batch: int) -> list[State]:
        """The initial state of every layer and direction."""
        if hx is None:
            nothing = zeros(batch, self.hidden_size, dtype=x.spec.dtype, device=x.storage.device)
            out = narrow(nothing, 1, 0, self.proj_size) if self.proj_size else nothing
            return [(out, nothing)[:self._module_tensors]] * len(self._all_weights)
        return apart(hx)

    def _module_weights(self) -> Iterator[list[Any]]:
        """The weights and biases of each layer and direction, one after the other as they are needed: some are computed."""
        # By attribute: weight normalization and parametrizations compute some in the place of parameters.
        return ([getattr(self, name) for name in names] for names in self._all_weights)

    # What follows has PyTorch's names, by which subclasses with a ``forward`` of their own call it.

    @property
    def _flat_weights_names(self) -> list[str]:
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Any]:
        """The weights and biases of all layers and directions in a row; the layer does not see what is put into the list."""
        return [w for weights in self._module_weights() for w in weights]

    @_flat_weights.setter
    def _flat_weights(self, weights: Any) -> None:
        raise AttributeError(f"_flat_weights of a {type(self).__name__} cannot be set: to compute with other weights, register "
                             "a parametrization (nn.utils.parametrize), or set the parameters by their names, such as "
                             f"{self._flat_weights_names[0]}")

    def get_expected_hidden_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """The shape of h, of a batch [L, N, in] (or batch first), or of packed sequences with their ``batch_sizes``."""
        batch = input.shape[0 if self.batch_first else 1] if batch_sizes is None else int(batch_sizes[0])
        return len(self._all_weights), batch, self.proj_size or self.hidden_size

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raise :class:`SpecError` for another number of dimensions, or another width."""
        if input.dim() != (expected := 3 if batch_sizes is None else 2):
            raise SpecError(f"input must have {expected} dimensions, got {input.dim()}")
        self._module_need_width(input)

    def check_hidden_size(self, hx: Tensor, expected_hidden_size: tuple[int, int, int],
                          msg: str = "Expected hidden size {}, got {}") -> None:
        """Raise :class:`SpecError` for a state of another shape."""
        if hx.shape != expected_hidden_size:
            raise SpecError(msg.format(expected_hidden_size, list(hx.shape)))

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        """Raise :class:`SpecError` for an input or states of other shapes."""
        self.check_input(input, batch_sizes)
        self.check_hidden_size(hidden, self.get_expected_hidden_size(input, batch_sizes))

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        """The states with their sequences in another order."""
        return hx if permutation is None else apply_permutation(hx, permutation)

    def _module_need_width(self, x: Tensor) -> None:
        if x.spec.shape[-1] != self.input_size:
            raise SpecError(f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.spec.shape[-1]}")

    def _module_run(self, input: Any, hx: State | None) -> tuple[Any, State]:
        if isinstance(input, PackedSequence):
            return self._module_run_packed(input, hx)
        if input.spec.ndim not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.spec.ndim}D instead")
        self._module_need_width(input)
        lone = input.spec.ndim == 2
        x = unsqueeze(input, 1) if lone else transpose(input, 0, 1) if self.batch_first else input
        if not x.spec.shape[0]:
            raise SpecError("Expected sequence length to be larger than 0 in RNN")
        if hx is not None:
            batch = () if lone else (x.spec.shape[1],)
            need_states(self, hx, self._module_tensors, (len(self._all_weights), *batch, self.hidden_size), self.proj_size)
        x, last = self._module_through(x, None, hx if hx is None or not lone else tuple(unsqueeze(h, 1) for h in hx))
        if lone:
            return squeeze(x, 1), tuple(squeeze(h, 1) for h in last)
        return transpose(x, 0, 1) if self.batch_first else x, last

    def _module_run_packed(self, input: PackedSequence, hx: State | None) -> tuple[PackedSequence, State]:
        self._module_need_width(input.data)
        if hx is not None:
            need_states(self, hx, self._module_tensors, (len(self._all_weights), input.runs()[0][1], self.hidden_size),
                         self.proj_size)
        if hx is not None and input.sorted_indices is not None:
            hx = tuple(apply_permutation(h, input.sorted_indices) for h in hx)
        out, last = self._module_through(input.data, input.runs(), hx)
        if input.unsorted_indices is not None:
            last = tuple(apply_permutation(h, input.unsorted_indices) for h in last)
        return input._replace(data=out), last

    def _module_through(self, x: Tensor, runs: list[tuple[int, int]] | None, hx: State | None) -> tuple[Tensor, State]:
        """Run all layers along [L, N, in], or along packed sequences [total steps, in] with their ``runs``."""
        states = self._module_start(hx, x, x.spec.shape[1] if runs is None else runs[0][1])
        return through(self.mode, x, runs, states, self._module_weights(), self.bias, 1 + self.bidirectional,
                       self.dropout if self.training else 0.0)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Any:
        """The last layer's outputs at all steps, and the last state of every layer and direction."""
        output, (last,) = self._module_run(input, None if hx is None else (hx,))
        return output, last

    @property
    def all_weights(self) -> list[list[Any]]:
        """The weights and biases of each layer and direction; only the weights with ``bias=False``."""
        return list(self._module_weights())

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + unusual(
            self, proj_size=0, num_layers=1, bias=True, batch_first=False, dropout=0.0, bidirectional=False)


class RNN(RNNBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu with ``nonlinearity="relu"``.

    The input is [L, N, in], or [N, L, in] with ``batch_first``, or [L, in], or packed sequences. Returns the last layer's
    outputs, [L, N, directions * H] or laid out as the input, and the last states, [layers * directions, N, H].
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
                 dtype: Any = None, *, proj_size: int = 0) -> None:
        self.nonlinearity = nonlinearity_of(nonlinearity)
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout,
                         bidirectional, proj_size, device, dtype)


class GRU(RNNBase):
    """Gates r, z; n = tanh(x_n + r * h_n), h' = n + z * (h - n); shapes as in :class:`RNN`. Cho et al., arXiv:1406.1078."""

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: Any = None, *,
                 proj_size: int = 0) -> None:
        super().__init__("GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size,
                         device, dtype)


class LSTM(RNNBase):
    """Gates i, f, g, o; c' = f * c + i * g, h' = o * tanh(c'). Hochreiter and Schmidhuber, 1997; Gers et al., 2000.

    Shapes as in :class:`RNN`; the state is a pair (h, c). With ``proj_size`` P, h' = W_hr (o * tanh(c')): outputs and h have
    the width P. Sak et al., arXiv:1402.1128.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
                 dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__("LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size,
                         device, dtype)

    def get_expected_cell_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """The shape of c; as for h, :meth:`get_expected_hidden_size`."""
        return (*self.get_expected_hidden_size(input, batch_sizes)[:2], self.hidden_size)

    def check_forward_args(self, input: Tensor, hidden: State, batch_sizes: Tensor | None) -> None:
        """Raise :class:`SpecError` for an input or states of other shapes."""
        self.check_input(input, batch_sizes)
        self.check_hidden_size(hidden[0], self.get_expected_hidden_size(input, batch_sizes),
                               "Expected hidden[0] size {}, got {}")
        self.check_hidden_size(hidden[1], self.get_expected_cell_size(input, batch_sizes),
                               "Expected hidden[1] size {}, got {}")

    def permute_hidden(self, hx: State, permutation: Tensor | None) -> State:
        """The states with their sequences in another order."""
        return hx if permutation is None else tuple(apply_permutation(h, permutation) for h in hx)

    def forward(self, input: Tensor, hx: State | None = None) -> Any:
        """The last layer's outputs at all steps, and the last state (h, c) of every layer and direction."""
        return self._module_run(input, hx)


def nonlinearity_of(name: str) -> str:
    if name not in ("tanh", "relu"):
        raise ValueError(f"Unknown nonlinearity '{name}'. Select from 'tanh' or 'relu'.")
    return name

"""Single steps of recurrent networks: the cells of an RNN, an LSTM and a GRU."""

from __future__ import annotations

from typing import Any

from gradcore.functional import empty, squeeze, unsqueeze, zeros
from gradcore.functional.recurrent import STEPS, State
from gradcore.nn.module import unusual
from gradcore.nn.parameter import Parameter
from gradcore.nn.recurrent import Recurrent, need_states, nonlinearity_of
from gradcore.ops.linalg import linear

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "RNNCellBase"]

Tensor = Any


class RNNCellBase(Recurrent):
    """One step: input [N, in] or [in], state [N, H] or [H], zeros by default."""

    #: The key in the table of steps.
    mode = ""
    weight_ih: Parameter
    weight_hh: Parameter
    bias_ih: Parameter | None
    bias_hh: Parameter | None

    def __init__(self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None,
                 dtype: Any = None) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        width = num_chunks * hidden_size
        self.weight_ih = Parameter(empty(width, input_size, device=device, dtype=dtype))
        self.weight_hh = Parameter(empty(width, hidden_size, device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(width, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def _module_run(self, input: Tensor, hx: State | None) -> State:
        if input.spec.ndim not in (1, 2):
            raise ValueError(f"{type(self).__name__}: Expected input to be 1D or 2D, got {input.spec.ndim}D instead")
        lone = input.spec.ndim == 1
        _, tensors, step = STEPS[self.mode]
        x = unsqueeze(input, 0) if lone else input
        if hx is None:
            state = (zeros(x.spec.shape[0], self.hidden_size, dtype=x.spec.dtype,
                           device=x.storage.device),) * tensors
        else:
            need_states(self, hx, tensors, (*input.spec.shape[:-1], self.hidden_size))
            state = tuple(unsqueeze(h, 0) for h in hx) if lone else hx
        state = step(state, linear(x, self.weight_ih, self.bias_ih), self.weight_hh, self.bias_hh)
        return tuple(squeeze(h, 0) for h in state) if lone else state

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Any:
        return self._module_run(input, None if hx is None else (hx,))[0]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + unusual(self, bias=True)


class RNNCell(RNNCellBase):
    """One step of :class:`RNN`: input [N, in] or [in], state [N, H] or [H], zeros by default."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None,
                 dtype: Any = None) -> None:
        self.nonlinearity = nonlinearity_of(nonlinearity)
        self.mode = f"RNN_{nonlinearity.upper()}"
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)

    def extra_repr(self) -> str:
        return super().extra_repr() + unusual(self, nonlinearity="tanh")


class GRUCell(RNNCellBase):
    """One step of :class:`GRU`: input [N, in] or [in], state [N, H] or [H], zeros by default."""

    mode = "GRU"

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)


class LSTMCell(RNNCellBase):
    """One step of :class:`LSTM`: input [N, in] or [in], state [N, H] or [H], zeros by default; the state is a pair (h, c)."""

    mode = "LSTM"

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: State | None = None) -> Any:
        return self._module_run(input, hx)

"""Layers that subclasses change by PyTorch's internal names: convolutions, norms of attention, embeddings, trees of modules.

Each case runs with either library, and what it returns must be equal.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gradcore
from tests.conftest import raises
from tests.host.nn.test_recurrent_overridden import _input, _near, _trained


def convolutions_on_the_base(t: Any) -> Any:
    class Modulated(t.nn.modules.conv._ConvNd):
        def __init__(self, taken: int, given: int, size: int) -> None:
            super().__init__(taken, given, (size, size), (1, 1), (size // 2,) * 2, (1, 1), False, (0, 0), 1, True, "zeros")
            self.style = t.nn.Linear(taken, taken)

        def forward(self, x: Any, style: Any) -> Any:
            n, c, h, w = x.shape
            weight = self.weight.unsqueeze(0) * self.style(style).view(n, 1, c, 1, 1)
            weight = weight * t.rsqrt(weight.pow(2).sum([2, 3, 4], keepdim=True) + 1e-8)
            x = t.nn.functional.conv2d(x.reshape(1, n * c, h, w), weight.flatten(0, 1), padding=self.padding, groups=n)
            return x.reshape(n, -1, h, w)

    class Up(t.nn.modules.conv._ConvTransposeNd):
        def __init__(self) -> None:
            super().__init__(2, 3, (3,), (2,), (1,), (1,), True, (1,), 1, False, "zeros", device=None, dtype=None)

        def forward(self, x: Any) -> Any:
            return t.nn.functional.conv_transpose1d(x, self.weight, self.bias, self.stride, self.padding, self.output_padding)

    model, up = Modulated(2, 3, 3), Up()
    x, style = _input(t, 2, 2, 4, 4), _input(t, 2, 2)
    return [_trained(t, model, lambda m: m(x, style)), _trained(t, up, lambda m: m(_input(t, 1, 2, 4))), repr(model), repr(up)]


def attention_by_hand(t: Any) -> Any:
    F = t.nn.functional

    class Block(t.nn.TransformerEncoderLayer):
        def forward(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False) -> Any:
            padding = F._canonical_mask(
                mask=src_key_padding_mask, mask_name="src_key_padding_mask", other_type=F._none_or_dtype(src_mask),
                other_name="src_mask", target_type=src.dtype)
            mask = F._canonical_mask(mask=src_mask, mask_name="src_mask", other_type=None, other_name="",
                                     target_type=src.dtype, check_other=False)
            x = self.norm1(src + self._sa_block(src, mask, padding, is_causal=is_causal))
            return self.norm2(x + self._ff_block(x))

    named = importlib.import_module(f"{t.__name__}.nn.modules.transformer")

    class Stack(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = named._get_clones(Block(8, 2, 16, 0.0, named._get_activation_fn("gelu"), batch_first=True), 2)

        def forward(self, x: Any, mask: Any, padding: Any) -> Any:
            causal = named._detect_is_causal_mask(mask, None, named._get_seq_len(x, True))
            for layer in self.layers:
                x = layer(x, mask, padding, is_causal=causal)
            return x

    x, padding = _input(t, 2, 5, 8), t.tensor([[False] * 5, [False] * 3 + [True] * 2])
    mask = t.triu(t.ones(5, 5), 1).bool()
    layer = Block(8, 2, 16).self_attn
    packed = [F._in_projection_packed(a, b, c, layer.in_proj_weight.detach() * 0 + 1, layer.in_proj_bias.detach())
              for a, b, c in ((x, x, x), (x, x * 2, x), (x, x * 2, x * 2))]
    apart = F._in_projection(x, x * 2, x, *(t.ones(8, 8),) * 3)
    with raises(AssertionError, "only bool and floating types of m are supported"):
        F._canonical_mask(t.ones(2).long(), "m", None, "", x.dtype)
    return [_trained(t, Stack(), lambda m: m(x, mask, padding)), [y.tolist() for parts in (*packed, apart) for y in parts],
            named._generate_square_subsequent_mask(3).tolist(), named._get_seq_len(x, False), named._get_seq_len(x[0], True),
            repr(t.nn.TransformerEncoder(Block(8, 2, 16, batch_first=True), 1))]


def tables_drawn_otherwise(t: Any) -> Any:
    class Table(t.nn.Embedding):
        def reset_parameters(self) -> None:
            t.nn.init.ones_(self.weight)
            self._fill_padding_idx_with_zero()

    return Table(3, 2, padding_idx=1).weight.tolist()


def members_by_ones_own_names(t: Any) -> Any:
    class Renamed(t.nn.Sequential):
        def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[Any]:
            for name, p in self._named_members(lambda m: m._parameters.items(), prefix, recurse, remove_duplicate):
                yield f"own.{name}", p

        def __call__(self, x: Any) -> Any:
            return self._call_impl(x) * 2

    net = Renamed(t.nn.Linear(1, 1), t.nn.BatchNorm1d(1))
    t.nn.init.ones_(net[0].weight)
    t.nn.init.zeros_(net[0].bias)
    buffers = [name for name, _ in net._named_members(lambda m: m._buffers.items(), prefix="p")]
    return [[name for name, _ in net.named_parameters()], len(list(net.parameters())), buffers, net.eval()(t.ones(1, 1)).item()]


def kinds_of_padding(t: Any) -> Any:
    path = t.nn.modules.padding
    found = [[isinstance(m, getattr(path, f"_{kind}PadNd")) for kind in ("Constant", "Reflection", "Replication", "Circular")]
             for m in (t.nn.ZeroPad2d(1), t.nn.ConstantPad1d(1, 2.0), t.nn.ReflectionPad2d(1), t.nn.ReplicationPad3d(1),
                       t.nn.CircularPad1d(1))]
    zero = t.nn.ZeroPad2d((1, 0, 0, 1))
    return [found, isinstance(zero, t.nn.ConstantPad2d), repr(zero), zero.value, zero(_input(t, 1, 1, 2, 2)).tolist()]


def losses_with_the_older_arguments(t: Any) -> Any:
    reduction = importlib.import_module(f"{t.__name__}.nn._reduction")
    with raises(ValueError, "is not a valid value for reduction"):
        reduction.get_enum("max")
    return [[reduction.get_enum(name) for name in ("none", "mean", "sum")],
            [reduction.legacy_get_string(a, b, emit_warning=False) for a in (None, True, False) for b in (None, True, False)]]


CASES: list[Callable[[Any], Any]] = [
    convolutions_on_the_base, attention_by_hand, tables_drawn_otherwise, members_by_ones_own_names, kinds_of_padding,
    losses_with_the_older_arguments]


@pytest.mark.oracle
@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
def test_an_overridden_layer_is_pytorchs(case: Callable[[Any], Any], torch: Any) -> None:
    ours, theirs = case(gradcore), case(torch)
    assert _near(ours, theirs), (ours, theirs)


@pytest.mark.oracle
def test_the_types_of_sizes_are_pytorchs(torch: Any) -> None:
    ours, theirs = (importlib.import_module(f"{t.__name__}.nn.common_types") for t in (gradcore, torch))
    names = [name for name in vars(theirs) if name.startswith(("_size", "_ratio"))]
    assert len(names) > 10 and all(set(getattr(ours, n).__args__) == set(getattr(theirs, n).__args__) for n in names)
    assert gradcore.nn.modules.normalization._shape_t is not None  # type: ignore[attr-defined]

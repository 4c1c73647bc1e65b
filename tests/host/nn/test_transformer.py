"""Layers of transformers compared with PyTorch's, from its weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from tests.conftest import raises
from tests.host.nn.test_layers import values

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
              pytest.mark.filterwarnings("ignore:Support for mismatched")]


def compare(torch: Any, ours: Any, theirs: Any, arrays: tuple[Any, ...], **named: Any) -> None:
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    results = []
    for library, module in ((gradcore, ours), (torch, theirs)):
        leaves = [library.tensor(a, requires_grad=True) for a in arrays]
        given = {k: library.tensor(v) if isinstance(v, np.ndarray) else v for k, v in named.items()}
        out = module(*leaves, **given)
        (out * library.tensor(values(*out.shape, seed=9))).sum().backward()
        results.append([out, *(x.grad for x in leaves), *(p.grad for p in module.parameters())])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-4)


CAUSAL = np.triu(np.full((5, 5), -np.inf, np.float32), 1)
PADDING = np.zeros((3, 5), np.bool_)
PADDING[1, 3:] = True
SIZES = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0}


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}, {"batch_first": True, "bias": False}],
                         ids=str)
@pytest.mark.parametrize("named", [{}, {"src_mask": CAUSAL, "is_causal": True}, {"src_key_padding_mask": PADDING}], ids=list)
def test_encoder_layer(torch: Any, options: dict[str, Any], named: dict[str, Any]) -> None:
    shape = (3, 5, 8) if options.get("batch_first") else (5, 3, 8)
    compare(torch, nn.TransformerEncoderLayer(**SIZES, **options), torch.nn.TransformerEncoderLayer(**SIZES, **options),
            (values(*shape),), **named)


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "batch_first": True}], ids=str)
def test_decoder_layer(torch: Any, options: dict[str, Any]) -> None:
    shapes = ((3, 5, 8), (3, 5, 8)) if options.get("batch_first") else ((5, 3, 8), (5, 3, 8))
    compare(torch, nn.TransformerDecoderLayer(**SIZES, **options), torch.nn.TransformerDecoderLayer(**SIZES, **options),
            tuple(values(*s, seed=k) for k, s in enumerate(shapes)), tgt_mask=CAUSAL, memory_key_padding_mask=PADDING)


def test_stacks(torch: Any) -> None:
    def encoder(library: Any) -> Any:
        n = library.nn
        return n.TransformerEncoder(n.TransformerEncoderLayer(**SIZES), 3, n.LayerNorm(8))

    compare(torch, encoder(gradcore), encoder(torch), (values(5, 3, 8),), mask=CAUSAL)
    whole = {"d_model": 8, "nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 12, "dropout": 0.0,
             "batch_first": True}
    compare(torch, nn.Transformer(**whole), torch.nn.Transformer(**whole), (values(3, 5, 8), values(3, 5, 8, seed=1)),
            tgt_mask=CAUSAL)


def test_each_mask_has_its_place(torch: Any) -> None:
    options = {**SIZES, "num_encoder_layers": 1, "num_decoder_layers": 2, "layer_norm_eps": 0.1, "bias": False}
    ours, theirs = (library.nn.Transformer(**options, dtype=library.float64) for library in (gradcore, torch))
    assert {p.dtype for p in ours.parameters()} == {gradcore.float64}
    masks = {"src_mask": values(4, 4, seed=3), "tgt_mask": CAUSAL, "memory_mask": values(5, 4, seed=4),
             "src_key_padding_mask": PADDING[:, 1:], "tgt_key_padding_mask": PADDING,
             "memory_key_padding_mask": np.roll(PADDING[:, 1:], 1, 0)}
    for name, mask in masks.items():
        compare(torch, ours, theirs, tuple(values(n, 3, 8, seed=k).astype(np.float64) for k, n in enumerate((4, 5))),
                **{name: mask if mask.dtype == np.bool_ else mask.astype(np.float64)})


@pytest.mark.parametrize("kind", ["TransformerEncoderLayer", "TransformerDecoderLayer"])
@pytest.mark.parametrize("name", ["dropout", "dropout1", "dropout2", "dropout3"])
def test_each_part_is_dropped_by_a_layer_of_its_own(torch: Any, kind: str, name: str) -> None:
    layers = [getattr(library.nn, kind)(**SIZES) for library in (gradcore, torch)]
    assert hasattr(layers[0], name) == hasattr(layers[1], name)
    if hasattr(layers[0], name):
        for layer in layers:
            getattr(layer, name).p = 1.0
        compare(torch, *layers, tuple(values(5, 3, 8, seed=k) for k in range(2 if kind == "TransformerDecoderLayer" else 1)))


def _weights_kept(t: Any, x: Any) -> Any:
    class Layer(t.nn.TransformerEncoderLayer):
        def _sa_block(self, x: Any, attn_mask: Any, key_padding_mask: Any, is_causal: bool = False) -> Any:
            out, self.weights = self.self_attn(x, x, x, attn_mask=attn_mask, key_padding_mask=key_padding_mask)
            return self.dropout1(out) * 2

    layer = Layer(**SIZES)
    return [layer(x), layer.weights]


def _blocks_replaced(t: Any, x: Any) -> Any:
    class Layer(t.nn.TransformerDecoderLayer):
        def _mha_block(self, x: Any, mem: Any, *masks: Any) -> Any:
            return mem * 3

        def _ff_block(self, x: Any) -> Any:
            return -x

    return [Layer(**SIZES)(x, x)]


def _attention_wrapped(t: Any, x: Any) -> Any:
    layer, found = t.nn.TransformerEncoderLayer(**SIZES), []
    attend = layer.self_attn.forward

    def wrapped(*args: Any, **named: Any) -> Any:
        result = attend(*args, **{**named, "need_weights": True, "average_attn_weights": False})
        found.append(result[1])
        return result

    layer.self_attn.forward = wrapped
    layer(x)
    del layer.self_attn.forward
    return found


def _layers_of_ones_own(t: Any, x: Any) -> Any:
    class Layer(t.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn = t.nn.MultiheadAttention(8, 2)

        def forward(self, *given: Any, src_key_padding_mask: Any = None, tgt_mask: Any = None, **named: Any) -> Any:
            return given[0] + len(given)

    class Stack(t.nn.Module):
        def forward(self, *given: Any, **named: Any) -> Any:
            return sum(given)

        def __len__(self) -> int:
            return 0

    whole = t.nn.Transformer(8, 2, custom_encoder=Stack(), custom_decoder=Stack())
    return [t.nn.TransformerEncoder(Layer(), 2)(x), t.nn.TransformerDecoder(Layer(), 2)(x, x), whole(x, x)]


def _filled_otherwise(t: Any, x: Any) -> Any:
    class Whole(t.nn.Transformer):
        def _reset_parameters(self) -> None:
            for p in self.parameters():
                t.nn.init.constant_(p, 0.5)

    return [Whole(8, 2, 1, 1, 12, 0.0)(x, x)]


@pytest.mark.parametrize("program", [_weights_kept, _blocks_replaced, _attention_wrapped, _layers_of_ones_own,
                                     _filled_otherwise], ids=lambda f: f.__name__)
def test_parts_that_programs_replace_are_called_as_pytorchs(torch: Any, program: Any) -> None:
    # The others compute from weights that each library draws.
    exact = program in (_blocks_replaced, _layers_of_ones_own, _filled_otherwise)
    for ours, theirs in zip(*(program(t, t.tensor(values(5, 3, 8))) for t in (gradcore, torch)), strict=True):
        assert tuple(ours.shape) == tuple(theirs.shape)
        if exact:
            np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("call", [
    lambda t, x: t.nn.TransformerEncoderLayer(**SIZES)(x, is_causal=True),
    lambda t, x: t.nn.TransformerDecoderLayer(**SIZES)(x, x, memory_is_causal=True),
    lambda t, x: t.nn.Transformer(8, 2, 1, 1, 12)(x, x, tgt_is_causal=True)], ids=range(3))
def test_a_causal_hint_needs_its_mask(torch: Any, call: Any) -> None:
    for t in (gradcore, torch):
        with raises(RuntimeError, "Need attn_mask if specifying the is_causal hint"):
            call(t, t.ones(5, 3, 8))


def test_masks_and_errors(torch: Any) -> None:
    np.testing.assert_array_equal(nn.Transformer.generate_square_subsequent_mask(5).numpy(), CAUSAL)
    assert nn.Transformer.generate_square_subsequent_mask(5, dtype=gradcore.float64).dtype == gradcore.float64
    # Drawn up to the square root of 6 / (8 + 30), not of 1 / 8.
    assert nn.Transformer(8, 2, 1, 1, 30).decoder.layers[0].linear1.weight.abs().max().item() > 0.36
    with raises(RuntimeError, "activation should be relu/gelu, not tanh"):
        nn.TransformerEncoderLayer(8, 2, activation="tanh")
    with raises(RuntimeError, "must be equal to d_model, 8, but got 7 and 8"):
        nn.Transformer(8, 2, 1, 1, 12)(gradcore.ones(2, 1, 7), gradcore.ones(2, 1, 8))


def test_a_classifier_of_sequences_learns_with_dropout() -> None:
    """Does a sequence hold more of one symbol than of the other?"""
    gradcore.manual_seed(0)
    rng = np.random.default_rng(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(2, 16)
            self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True, norm_first=True), 2)
            self.head = nn.Linear(16, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(self.table(x)).mean(1))

    net = Net()
    optimizer = gradcore.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(60):
        x = rng.integers(0, 2, (64, 9))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(gradcore.tensor(x)), gradcore.tensor((x.sum(1) > 4).astype(np.int64))).backward()
        optimizer.step()
    net.eval()
    x = rng.integers(0, 2, (500, 9))
    assert (net(gradcore.tensor(x)).argmax(1).numpy() == (x.sum(1) > 4)).mean() > 0.95


@pytest.mark.parametrize("options", [
    {}, {"apart": True}, {"bias": True}, {"zero": True}, {"padding": True}, {"mask": True, "need_weights": False},
    {"padding": True, "mask": True, "average_attn_weights": False, "bias": True}], ids=str)
def test_multi_head_attention_with_parameters_given(options: dict[str, Any], torch: Any) -> None:
    """As open_clip and WavLM call it: the projections are apart, and have no module of their own."""
    apart, bias, padding, mask = (options.get(name, False) for name in ("apart", "bias", "padding", "mask"))
    arrays = {"query": (4, 3, 8), "key": (5, 3, 6 if apart else 8), "value": (5, 3, 10 if apart else 8), "in_proj_bias": (24,),
              "out_proj_weight": (8, 8), "out_proj_bias": (8,), **({"bias_k": (1, 1, 8), "bias_v": (1, 1, 8)} if bias else {}),
              **({"q_proj_weight": (8, 8), "k_proj_weight": (8, 6), "v_proj_weight": (8, 10)} if apart else
                 {"in_proj_weight": (24, 8)})}
    results = []
    for library in (gradcore, torch):
        given = {name: library.tensor(values(*shape, seed=k), requires_grad=True)
                 for k, (name, shape) in enumerate(arrays.items())}
        out, weights = library.nn.functional.multi_head_attention_forward(**{
            "in_proj_weight": None, "bias_k": None, "bias_v": None, **given}, embed_dim_to_check=8, num_heads=2,
            add_zero_attn=options.get("zero", False), dropout_p=0.5, training=False, use_separate_proj_weight=apart,
            key_padding_mask=library.tensor(PADDING) if padding else None,
            attn_mask=library.tensor(CAUSAL[:4]) if mask else None,
            **{name: options[name] for name in ("need_weights", "average_attn_weights") if name in options})
        (out * library.tensor(values(*out.shape, seed=9))).sum().backward()
        results.append([out, *([] if weights is None else [weights]), *(x.grad for x in given.values())])
    assert len(results[0]) == len(results[1])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("apart", [False, True])
def test_attention_drops_in_training_alone(torch: Any, apart: bool) -> None:
    options = {"dropout": 0.5, "bias": False, "add_bias_kv": True, **({"kdim": 6, "vdim": 10} if apart else {})}
    ours, theirs = (library.nn.MultiheadAttention(8, 2, **options, dtype=library.float64) for library in (gradcore, torch))
    assert {p.dtype for p in ours.parameters()} == {gradcore.float64} and list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    found = []
    for library, layer in ((gradcore, ours), (torch, theirs)):
        x, k, v = (library.tensor(values(4, 3, n), dtype=library.float64) for n in ((8, 6, 10) if apart else (8, 8, 8)))
        assert not np.allclose(*(layer(x, k, v)[0].detach().numpy() for _ in range(2)))
        layer.eval()
        found.append(layer(x, k, v)[0].detach().numpy())
    np.testing.assert_allclose(*found, rtol=1e-9)


def test_what_multi_head_attention_does_not_take(torch: Any) -> None:
    x, w, b = gradcore.ones(2, 1, 4), gradcore.ones(12, 4), gradcore.ones(4, 4)
    call = gradcore.nn.functional.multi_head_attention_forward
    with raises(NotImplementedError, "static_k=", "is not implemented"):
        call(x, x, x, 4, 2, w, None, None, None, False, 0.0, b, None, static_k=x)
    with raises(gradcore.SpecError, "embed_dim 4 not divisible by num_heads 3"):
        call(x, x, x, 4, 3, w, None, None, None, False, 0.0, b, None)
    with raises(gradcore.SpecError, "was expecting query of embedding dimension 8, but got 4"):
        call(x, x, x, 8, 2, w, None, None, None, False, 0.0, b, None)

"""Attention, embeddings and multi-head attention as users call them, compared with PyTorch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import nn
from gradcore.errors import SpecError
from gradcore.events import Alloc
from gradcore.nn import functional as F
from gradcore.spec import round_up
from tests.conftest import raises, torch_or_skip
from tests.host.ops.test_images import compare
from tests.logs import normalized


@pytest.mark.oracle
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(5, 5), (64, 64), (65, 65), (130, 130), (70, 40), (30, 90), (1, 1)])
def test_attention(sizes: tuple[int, int], causal: bool) -> None:
    length, keys = sizes
    for lead in ((2, 3), (3,), (), (2, 1, 2)):
        compare(lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
                (*lead, length, 8), (*lead, keys, 8), (*lead, keys, 6), tolerance=2e-5)


@pytest.mark.oracle
def test_masks() -> None:
    allowed = np.random.default_rng(0).random((5, 7)) < 0.7
    allowed[:, 0] = True
    added = np.random.default_rng(1).standard_normal((2, 1, 5, 7)).astype(np.float32)
    for mask, scale in ((allowed, None), (added, 0.3)):
        compare(lambda t, q, k, v, m=mask, s=scale: t.nn.functional.scaled_dot_product_attention(q, k, v, t.tensor(m), scale=s),
                (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), tolerance=2e-5)


def of_one_projection(t: Any, x: Any) -> Any:
    """As a model calls it: heads are views of one product."""
    n, length, width = x.shape
    q, k, v = x.split(width // 3, dim=2)
    q, k, v = (part.view(n, length, 4, width // 12).transpose(1, 2) for part in (q, k, v))
    y = t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(n, length, width // 3)


@pytest.mark.oracle
def test_views_of_one_projection() -> None:
    compare(of_one_projection, (2, 100, 48), tolerance=2e-5)


def test_nothing_is_copied_and_no_scores_are_kept() -> None:
    x = gradcore.zeros(2, 256, 48, requires_grad=True)
    with gradcore.step() as s:
        y = of_one_projection(gradcore, x)
        y.sum().backward()
    made = [r for r in normalized(s.raw_log) if isinstance(r, Alloc) and r.tag.phase == "forward"]
    assert {r.tag.op for r in made} == {"attention", "sum"}, "no copies of views"
    one = 2 * 256 * 16 * 4
    # The bytes of the views, the result, and a number per row for each head.
    assert s.report.residual_bytes == x.nbytes + one + 2 * 4 * 256 * 4
    assert max(r.requested for r in made if r.tag.role == "workspace") < 2 * 4 * 256 * 256 * 4


@pytest.mark.oracle
def test_masks_of_every_shape() -> None:
    """Masks with fewer and with more dimensions, and fully masked rows, whose result is zero and not NaN."""
    rng = np.random.default_rng(0)
    for lead, shape in (((2, 3), (5, 7)), ((2, 3), (2, 1, 1, 7)), ((3,), (3, 5, 7)), ((2, 2, 3), (5, 1)),
                        ((2, 2, 3), (2, 1, 3, 5, 7)), ((), (5, 7))):
        allowed = rng.random(shape) < 0.6
        allowed.reshape(-1, shape[-1])[0] = False
        compare(lambda t, q, k, v, m=allowed: t.nn.functional.scaled_dot_product_attention(q, k, v, t.tensor(m)),
                (*lead, 5, 8), (*lead, 7, 8), (*lead, 7, 6), tolerance=2e-5)


@pytest.mark.oracle
def test_a_mask_may_be_learnt() -> None:
    for shape in ((3, 5, 7), (5, 1)):
        compare(lambda t, q, k, v, m: t.nn.functional.scaled_dot_product_attention(q, k, v, m),
                (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), shape, tolerance=2e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("shape", [(3, 4), (2, 1, 3, 4), (4,), (3, 1), ()], ids=str)
def test_a_learnt_mask_may_mask_rows_entirely(shape: tuple[int, ...], torch: Any) -> None:
    """The result and its gradients are 0 there, as those of a mask that is no parameter."""
    found = []
    for library in (gradcore, torch):
        mask = np.random.default_rng(0).normal(size=shape)
        mask[(..., 1, slice(None)) if len(shape) > 1 else ...] = -np.inf
        values = [mask, *np.random.default_rng(1).normal(size=(3, 2, 2, 4, 5))]
        given = [library.tensor(v[..., :3, :] if k == 1 else v, requires_grad=True) for k, v in enumerate(values)]
        out = library.nn.functional.scaled_dot_product_attention(*given[1:], given[0])
        slopes = library.autograd.grad(out, given, library.ones_like(out))
        found.append([x.detach().numpy() for x in (out, *slopes)])
    for ours, expected in zip(*found, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.oracle
def test_leading_dimensions_broadcast_and_heads_are_shared() -> None:
    for keys in ((1, 3, 7, 8), (2, 1, 7, 8), (3, 7, 8), (7, 8)):
        compare(lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v),
                (2, 3, 5, 8), keys, keys, tolerance=2e-5)
    compare(lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
            (2, 6, 5, 8), (2, 2, 5, 8), (2, 2, 5, 4), tolerance=2e-5)


@pytest.mark.oracle
def test_nothing_to_attend_to() -> None:
    for q, k in (((2, 3, 5, 4), (2, 3, 0, 4)), ((2, 3, 0, 4), (2, 3, 5, 4)), ((0, 3, 5, 4), (0, 3, 5, 4)),
                 ((2, 3, 5, 0), (2, 3, 5, 0))):
        compare(lambda t, q, k, v: t.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0), q, k, (*k[:3], 2))


def test_dropped_scores() -> None:
    x = gradcore.randn(2, 100, 48, requires_grad=True)

    def dropped(p: float) -> Any:
        gradcore.manual_seed(1)
        parts = (part.view(2, 100, 4, 4).transpose(1, 2) for part in x.split(16, dim=2))
        return F.scaled_dot_product_attention(*parts, dropout_p=p)

    with gradcore.step() as s:
        first = dropped(0.5)
        first.sum().backward()
    assert first.equal(dropped(0.5)) and not first.equal(dropped(0.0))
    assert dropped(1.0).abs().max().item() == 0
    # Neither the scores nor the mask: the bytes of the views, the result, a number per row, and the generator's state.
    assert s.report.residual_bytes == sum(map(round_up, (x.nbytes, first.nbytes, 2 * 4 * 100 * 4, 32)))
    # The mean is that without dropout.
    q, k = gradcore.zeros(1, 1, 2000, 4), gradcore.randn(1, 1, 300, 4)
    kept = F.scaled_dot_product_attention(q, k, gradcore.ones(1, 1, 300, 1), dropout_p=0.3)
    assert abs(kept.mean().item() - 1) < 5 * (0.3 / 0.7 / 300 / 2000) ** 0.5
    assert abs(kept.std().item() - (0.3 / 0.7 / 300) ** 0.5) < 0.002
    # Two calls, and two heads of one, drop differently.
    again = F.scaled_dot_product_attention(q, k, gradcore.ones(1, 1, 300, 1), dropout_p=0.3)
    assert not kept.equal(again)
    assert len(set(again.flatten().tolist())) > 50


@pytest.mark.oracle
@pytest.mark.parametrize(("weights", "batch_first", "same"), list(itertools.product((True, False), repeat=3)))
def test_multihead_attention(weights: bool, batch_first: bool, same: bool) -> None:
    torch = torch_or_skip()
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=batch_first)
    ours = nn.MultiheadAttention(12, 3, batch_first=batch_first)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({k: gradcore.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 2, 12)).astype(np.float32)
    other = x if same else rng.standard_normal((5, 9, 12) if batch_first else (7, 2, 12)).astype(np.float32)
    batch, keys = (5, other.shape[1]) if batch_first else (2, other.shape[0])
    padding = np.zeros((batch, keys), bool)
    padding[0, -1] = True
    found = []
    for t, layer in ((gradcore, ours), (torch, theirs)):
        a = t.tensor(x)
        b = a if same else t.tensor(other)
        length = x.shape[1] if batch_first else x.shape[0]
        mask = t.tensor(np.triu(np.ones((length, keys), bool), 1))
        y, w = layer(a, b, b, key_padding_mask=t.tensor(padding), need_weights=weights, attn_mask=mask)
        assert y.is_contiguous() or batch_first
        (y * y).sum().backward()
        found.append([y.detach().numpy(), layer.in_proj_weight.grad.numpy(), layer.out_proj.bias.grad.numpy(),
                      *([w.detach().numpy()] if weights else [])])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


WIDER = [{"kdim": 7}, {"vdim": 5, "bias": False}, {"kdim": 7, "vdim": 5, "add_bias_kv": True}, {"add_bias_kv": True},
         {"add_zero_attn": True}, {"kdim": 7, "add_bias_kv": True, "add_zero_attn": True}]


@pytest.mark.oracle
@pytest.mark.parametrize("masked", [None, "rows", "heads"])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("options", WIDER, ids=str)
def test_multihead_attention_of_other_widths_and_with_more_positions(options: dict[str, Any], weights: bool,
                                                                      masked: str | None) -> None:
    torch = torch_or_skip()
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(12, 3, batch_first=True, **options)
    ours = nn.MultiheadAttention(12, 3, batch_first=True, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({k: gradcore.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32)
              for shape in ((2, 4, 12), (2, 6, options.get("kdim", 12)), (2, 6, options.get("vdim", 12)))]
    padding = np.zeros((2, 6), bool)
    padding[0, -1] = True
    mask = np.triu(np.ones((4, 6), bool), 1) if masked == "rows" else rng.random((6, 4, 6)) > 0.7
    found = []
    for t, layer in ((gradcore, ours), (torch, theirs)):
        leaves = [t.tensor(a, requires_grad=True) for a in arrays]
        masks = {"key_padding_mask": t.tensor(padding), "attn_mask": t.tensor(mask)} if masked else {}
        y, w = layer(*leaves, need_weights=weights, **masks)
        (y * y).sum().backward()
        grads = [p.grad for p in (*leaves, *layer.parameters())]
        found.append([x.detach().numpy() for x in (y, *grads, *([w] if weights else []))])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("batch", [(), (1,)], ids=["unbatched", "one"])
@pytest.mark.parametrize("heads", [(), (1,)], ids=["one head", "heads"])
def test_multihead_attention_of_one_sequence_with_masks_of_floats(batch: tuple[int, ...], heads: tuple[int, ...]) -> None:
    torch = torch_or_skip()
    theirs = torch.nn.MultiheadAttention(12, 1, batch_first=True)
    ours = nn.MultiheadAttention(12, 1, batch_first=True)
    ours.load_state_dict({k: gradcore.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    rng = np.random.default_rng(0)
    x, mask, padding = (rng.standard_normal(shape).astype(np.float32)
                        for shape in ((*batch, 4, 12), (*heads, 4, 4), (*batch, 4)))
    found = [layer(*[t.tensor(x)] * 3, attn_mask=t.tensor(mask), key_padding_mask=t.tensor(padding))
             for t, layer in ((gradcore, ours), (torch, theirs))]
    for a, b in zip(*found, strict=True):
        assert tuple(a.shape) == tuple(b.shape)
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.oracle
def test_embeddings() -> None:
    torch = torch_or_skip()
    index = np.random.default_rng(0).integers(0, 7, (3, 4))
    for padding in (None, 2, -1):
        compare(lambda t, w, p=padding: t.nn.functional.embedding(t.tensor(index), w, p), (7, 5))
        assert repr(nn.Embedding(7, 5, padding)) == repr(torch.nn.Embedding(7, 5, padding))
    layer = nn.Embedding(7, 5, padding_idx=3)
    assert not layer.weight[3].detach().numpy().any() and abs(layer.weight.detach().numpy()).max() > 0.5
    table = nn.Embedding.from_pretrained(gradcore.ones(3, 2))
    assert not table.weight.requires_grad and table(gradcore.tensor([2])).tolist() == [[1.0, 1.0]]


def test_bad_input() -> None:
    q = gradcore.ones(2, 3, 4, 8)
    with raises(SpecError, "expected query [N, H, L, E]", "[2, 3, 4, 8]", "[2, 3, 4, 7]"):
        F.scaled_dot_product_attention(q, gradcore.ones(2, 3, 4, 7), q)
    with raises(SpecError, "same dtype", "float32", "float64"):
        F.scaled_dot_product_attention(q, q.double(), q)
    with raises(SpecError, "a mask of shape [5, 5] does not broadcast", "[2, 3, 4, 4]"):
        F.scaled_dot_product_attention(q, q, q, gradcore.zeros(5, 5))
    with raises(RuntimeError, "Explicit attn_mask should not be set when is_causal=True"):
        F.scaled_dot_product_attention(q, q, q, gradcore.zeros(4, 4), is_causal=True)
    with raises(SpecError, "Expected attn_mask dtype to be bool or float or to match query dtype", "int64", "float32"):
        F.scaled_dot_product_attention(q, q, q, gradcore.zeros(4, 4, dtype=np.int64))
    with raises(SpecError, "to all be  at least 2 dimensional", "query.dim: 4 key.dim: 1 and value.dim: 4"):
        F.scaled_dot_product_attention(q, gradcore.ones(8), q)
    with raises(SpecError, "cannot broadcast [2, 3] and [2, 2]"):
        F.scaled_dot_product_attention(q, q[:, :2], q)
    with raises(SpecError, "enable_gqa", "[2, 3, 4, 8] and [2, 2, 4, 8]"):
        F.scaled_dot_product_attention(q, q[:, :2], q[:, :2], enable_gqa=True)
    with raises(ValueError, "dropout probability has to be between 0 and 1, but got 1.5"):
        F.scaled_dot_product_attention(q, q, q, dropout_p=1.5)
    with raises(IndexError, "index 7 is out of bounds for dimension with size 7"):
        F.embedding(gradcore.tensor([7]), gradcore.ones(7, 2))
    with raises(SpecError, "tensors used as indices must be integers"):
        F.embedding(gradcore.ones(2), gradcore.ones(7, 2))
    with raises(ValueError, "Padding_idx must be within num_embeddings"):
        nn.Embedding(3, 2, padding_idx=3)
    with raises(ValueError, "embed_dim must be divisible by num_heads, but got 10 and 3"):
        nn.MultiheadAttention(10, 3)
    layer, x = nn.MultiheadAttention(8, 2, kdim=5), gradcore.ones(3, 1, 8)
    with raises(SpecError, "was expecting key of embedding dimension 5, but got 8"):
        layer(x, x, x)
    layer = nn.MultiheadAttention(8, 2)
    with raises(SpecError, "sequence lengths", "query has batch and length [1, 3], key [1, 4], value [1, 5]"):
        layer(x, gradcore.ones(4, 1, 8), gradcore.ones(5, 1, 8))
    with raises(SpecError, "must all be batched (3-D) or all unbatched (2-D), but are 3-D, 2-D, 2-D"):
        layer(x, x[:, 0], x[:, 0])
    with raises(SpecError, "the shape of attn_mask is [2, 2], but should be [3, 3] or [2, 3, 3]"):
        layer(x, x, x, attn_mask=gradcore.ones(2, 2))
    with raises(SpecError, "the shape of key_padding_mask is [2, 3], but should be [1, 3]"):
        layer(x, x, x, key_padding_mask=gradcore.ones(2, 3))
    with raises(SpecError, "only bool and floating types of attn_mask are supported, but got int64"):
        layer(x, x, x, attn_mask=gradcore.ones(3, 3, dtype=np.int64))

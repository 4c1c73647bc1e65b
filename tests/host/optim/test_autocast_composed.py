"""Functions that are several ops here and one of PyTorch's, in regions of autocast: its dtypes, and float32 all through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradcore

Call = Callable[[Any, Any], Any]


def labels(t: Any) -> Any:
    return t.zeros(4, dtype=t.int64)


def loss(name: str, *others: Any, **options: Any) -> Call:
    """A loss of x [4, 8] and of what ``others`` make, without a reduction."""
    return lambda t, x: getattr(t.nn.functional, name)(x, *[o(t, x) for o in others], reduction="none", **options)


def other(t: Any, x: Any) -> Any:
    return x.flip(0) * 0.5


def wide(t: Any, x: Any) -> Any:
    return t.ones(4, 8)


#: In PyTorch's list of float32.
RAISED: dict[str, Call] = {
    "l1_loss": loss("l1_loss", other), "l1_loss of two dtypes": loss("l1_loss", wide),
    "smooth_l1_loss": loss("smooth_l1_loss", other), "huber_loss": loss("huber_loss", wide),
    "mse_loss": loss("mse_loss", other), "soft_margin_loss": loss("soft_margin_loss", wide),
    "poisson_nll_loss": loss("poisson_nll_loss", other), "kl_div": loss("kl_div", other),
    "mean of kl_div": lambda t, x: t.nn.functional.kl_div(x, other(t, x), reduction="batchmean"),
    "hinge_embedding_loss": loss("hinge_embedding_loss", wide), "nll_loss": loss("nll_loss", lambda t, x: labels(t)),
    "margin_ranking_loss": loss("margin_ranking_loss", other, wide),
    "multi_margin_loss": loss("multi_margin_loss", lambda t, x: labels(t)),
    "multilabel_margin_loss": loss("multilabel_margin_loss", lambda t, x: t.zeros(4, 8, dtype=t.int64)),
    "triplet_margin_loss": loss("triplet_margin_loss", other, lambda t, x: x * 2),
    "cosine_embedding_loss": loss("cosine_embedding_loss", other, lambda t, x: t.ones(4)),
    "cosine_similarity": lambda t, x: t.cosine_similarity(x, other(t, x)),
    "cosine_similarity of each two": lambda t, x: t.cosine_similarity(x[:, None], x, dim=2),
    "pdist": lambda t, x: t.pdist(x), "cdist": lambda t, x: t.cdist(x, other(t, x), p=1), "dist": lambda t, x: t.dist(x, x * 2),
    "cdist by products": lambda t, x: t.cdist(x, other(t, x), compute_mode="use_mm_for_euclid_dist"),
    "renorm": lambda t, x: t.renorm(x, 2, 0, 1.0), "square": lambda t, x: x.square(), "2 / x": lambda t, x: 2 / x,
    "sum_to_size": lambda t, x: x.sum_to_size(1, 8),
    **{f"interpolate {mode}": lambda t, x, m=mode: t.nn.functional.interpolate(x.reshape(1, 1, 4, 8), size=(6, 12), mode=m)
       for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")},
    "a named operand": lambda t, x: t.nn.functional.l1_loss(input=x, target=other(t, x), reduction="none"),
}
#: In a dtype that is asked for, or in the widest of the operands'.
OTHERS: dict[str, Call] = {
    "softmax": lambda t, x: t.softmax(x, 1, dtype=t.float16), "log_softmax": lambda t, x: x.log_softmax(1, dtype=t.float16),
    "nn's softmax": lambda t, x: t.nn.functional.softmax(x, 1, dtype=t.float16),
    "nn's log_softmax": lambda t, x: t.nn.functional.log_softmax(x, 1, dtype=t.float16),
    "softmin": lambda t, x: t.nn.functional.softmin(x, 1, dtype=t.float16), "mean": lambda t, x: t.mean(x, dtype=t.float16),
    "sum": lambda t, x: t.sum(x, dtype=t.float16), "tensordot": lambda t, x: t.tensordot(x, x),
    "tensordot of two dtypes": lambda t, x: t.tensordot(x, wide(t, x)), "inner": lambda t, x: t.inner(x, x),
    "bilinear": lambda t, x: t.nn.functional.bilinear(x, wide(t, x), t.ones(3, 8, 8)),
    "bilinear of 16 bits": lambda t, x: t.nn.functional.bilinear(x, x, t.ones(3, 8, 8, dtype=x.dtype)),
    "interpolate area": lambda t, x: t.nn.functional.interpolate(x.reshape(1, 1, 4, 8), size=(2, 4), mode="area"),
    "scatter_add": lambda t, x: x.scatter_add(0, t.zeros(4, 8, dtype=t.int64), wide(t, x)),
    "scatter_add to float32": lambda t, x: wide(t, x).scatter_add(dim=0, index=t.zeros(4, 8, dtype=t.int64), src=x),
    "index_put": lambda t, x: x.index_put((t.zeros(1, dtype=t.int64),), t.ones(1, 8)),
}


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float16", "float32"])
# The one that is left out asks for cuBLAS, although there are no values.
@pytest.mark.parametrize("name", [n for n in (*RAISED, *OTHERS) if n != "cosine_similarity of each two"])
def test_dtypes_are_pytorchs_on_cuda(name: str, dtype: str, torch: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    call = (RAISED | OTHERS)[name]
    with gradcore.autocast("cpu", gradcore.float16):
        ours = call(gradcore, gradcore.ones(4, 8, dtype=getattr(gradcore, dtype)))
    # Tensors of a GPU that have no values, for which PyTorch chooses as for those of one that is there.
    with FakeTensorMode(), torch.device("cuda"):
        x = torch.ones(4, 8, dtype=getattr(torch, dtype))
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.float16)
        try:
            theirs = call(torch, x)
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.clear_autocast_cache()
    assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", [gradcore.float16, gradcore.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", RAISED)
def test_float32_all_through(name: str, dtype: Any) -> None:
    # The other operands, half or twice of it, are exact in 16 bits.
    x = gradcore.rand(4, 8, generator=gradcore.Generator().manual_seed(0)).to(dtype)
    with gradcore.autocast("cpu", dtype):
        found = RAISED[name](gradcore, x)
    assert found.dtype == gradcore.float32 and found.tolist() == RAISED[name](gradcore, x.float()).tolist()


def test_what_overflows_in_16_bits_does_not() -> None:
    x = gradcore.full((3,), 300.0, dtype=gradcore.float16, requires_grad=True)
    with gradcore.autocast("cpu", gradcore.float16):
        found = [x.square(), gradcore.nn.functional.mse_loss(x, -x, reduction="none"), 1e-7 / x]
    assert found[0].tolist() == [9e4] * 3 and found[1].tolist() == [36e4] * 3 and all(v > 0 for v in found[2].tolist())
    found[0].sum().backward()
    assert x.grad.dtype == gradcore.float16 and x.grad.tolist() == [600.0] * 3


def test_a_region_for_another_device_casts_nothing() -> None:
    x = gradcore.ones(4, 8, dtype=gradcore.float16)
    with gradcore.autocast("cuda"):
        assert [call(gradcore, x).dtype for call in (RAISED["l1_loss"], RAISED["2 / x"], OTHERS["tensordot"])] == [x.dtype] * 3

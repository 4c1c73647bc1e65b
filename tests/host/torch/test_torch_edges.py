"""Edges at which PyTorch does one thing of several: each case runs with both libraries, and gives the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcore

Case = Callable[[Any], Any]


def values(x: Any) -> Any:
    """Results as nested lists."""
    if isinstance(x, (list, tuple)):
        return [values(v) for v in x]
    return x.tolist() if hasattr(x, "tolist") else x


def scaled(mode: str, factor: float, dims: int) -> Case:
    def run(t: Any) -> Any:
        x = t.arange(3.0).reshape(1, 1, *(3,) + (1,) * (dims - 1)).expand(1, 1, *(3,) * dims)
        return t.nn.functional.interpolate(x, scale_factor=factor, mode=mode)

    return run


def resumed(make: Callable[[Any, Any, int], Any]) -> Case:
    def run(t: Any) -> Any:
        def optimizer() -> Any:
            return t.optim.SGD([t.nn.Parameter(t.ones(1))], lr=0.1)

        first = optimizer()
        schedule = make(t.optim.lr_scheduler, first, -1)
        for _ in range(5):
            first.step()
            schedule.step()
        second = optimizer()
        second.load_state_dict(first.state_dict())
        schedule = make(t.optim.lr_scheduler, second, 5)
        rates = [second.param_groups[0]["lr"]]
        for _ in range(4):
            second.step()
            schedule.step()
            rates.append(second.param_groups[0]["lr"])
        return rates

    return run


def wrapped(t: Any) -> Any:
    x = t.arange(4.0).reshape(1, 1, 4).requires_grad_()
    found = [t.nn.functional.pad(x, pad, "circular") for pad in ((-1, 1), (2, -1), (1, 1), (-2, 2), (0, -4), (-3, -1))]
    sum((y * y).sum() for y in found).backward()
    return [*found, x.grad, *(y.shape[-1] for y in found)]


def divergences(t: Any) -> Any:
    d = t.distributions
    kl = d.kl_divergence
    return [kl(d.Categorical(t.tensor([0.5, 0.5])), d.Categorical(t.tensor([1.0, 0.0]))),
            kl(d.Categorical(t.tensor([1.0, 0.0])), d.Categorical(t.tensor([0.5, 0.5]))),
            kl(d.Bernoulli(t.tensor(0.3)), d.Bernoulli(t.tensor([0.0, 1.0, 0.5]))),
            kl(d.Bernoulli(t.tensor([0.0, 1.0])), d.Bernoulli(t.tensor(0.5))),
            kl(d.Uniform(0.0, 1.0), d.Uniform(t.tensor([0.0, -1.0, 0.5]), t.tensor([1.0, 3.0, 2.0])))]


def ties_in_bags(t: Any) -> Any:
    weight = t.ones(4, 2).requires_grad_()
    t.nn.functional.embedding_bag(t.tensor([[0, 1, 2]]), weight, mode="max").sum().backward()
    return weight.grad


def ends(t: Any) -> Any:
    return [t.linspace(0, 4, 50, dtype=t.int64)[-1], t.linspace(0, 1, 50)[-1], t.linspace(3, -0.1, 7)[-1], t.linspace(1, 2, 1),
            t.linspace(t.tensor(1.0), t.tensor(3.0), 3)]


def narrowed_by_a_tensor(t: Any) -> Any:
    x = t.ones(2, 3).requires_grad_()
    t.narrow(x, 1, t.tensor(1), 2).sum().backward()
    return x.grad


def results_that_are_no_views(t: Any) -> Any:
    found = []
    for make in (lambda x: t.repeat_interleave(x, 1), lambda x: t.pixel_shuffle(x, 1), lambda x: t.pixel_unshuffle(x, 1),
                 lambda x: t.channel_shuffle(x[None, 0], 1), lambda x: t.linalg.matrix_power(x, 1),
                 lambda x: t.nn.functional.unfold(x, 1), lambda x: t.nn.functional.interpolate(x[None], size=(3, 3)),
                 lambda x: x[:, ::2].ravel(), lambda x: t.repeat_interleave(t.tensor(3.0), 2)):
        x = t.arange(9.0).reshape(1, 3, 3)
        make(x).add_(1)
        found.append(x)
    return found


def viewed_results(t: Any) -> Any:
    x = t.arange(72.0).reshape(2, 4, 9)
    return [t.nn.functional.fold(x, (4, 4), 2, padding=1, stride=2).view(-1)]


def one_triangle(t: Any) -> Any:
    x = t.tensor([[4.0, 1.0], [2.0, 5.0]])
    return [t.linalg.cholesky(x), t.linalg.cholesky(x, upper=True)]


def nothing_in_parts(t: Any) -> Any:
    return [t.ones(0, 3).split(0), t.ones(0, 3).split(2), t.ones(0, 3).split([])]


def reshaped_without_a_graph(t: Any) -> Any:
    x = t.ones(3).requires_grad_()
    with t.no_grad():
        y = x.reshape(-1)
    ((y * 2).sum() + x.sum()).backward()
    return x.grad


def rounded_quotients(t: Any) -> Any:
    return [t.div(t.tensor([True]), t.tensor([2]), rounding_mode="trunc"),
            t.div(t.tensor([-7]), t.tensor([True]), rounding_mode="trunc"),
            t.tensor_split(t.arange(6), t.tensor(3)), t.eye(2, requires_grad=True).requires_grad,
            t.scalar_tensor(2.0, requires_grad=True).requires_grad]


def of_integers(t: Any) -> Any:
    """With the dtypes, by name."""
    bytes_ = t.tensor([[0, 3], [1, 2]], dtype=t.uint8)
    found = [t.arange(0.0, -8.000001, -4.0, dtype=t.int32), t.arange(0.5, 2.1, dtype=t.int64),
             t.arange(-0.9, 2.1, 2.0, dtype=t.uint8),
             bytes_.any(), bytes_.all(np.int64(0)), bytes_.any(()), t.any(bytes_, 1, keepdim=True),
             t.tensordot(t.ones(1, 2, dtype=t.int32), t.ones(2, 2, dtype=t.int32), ([0], [1]))]
    names = "uint8 int32 int64 bool".split()
    return [*found, *(names.index(str(x.dtype).removeprefix("torch.")) for x in found)]


def shapes(t: Any) -> Any:
    size = t.ones(2, 3, 4).shape
    return [type(x) is type(size) for x in (size + (1,), size[:2], size[1:])] + [size[1], list(size + size)]


SCHEDULES: dict[str, Callable[[Any, Any, int], Any]] = {
    "exponential": lambda s, o, at: s.ExponentialLR(o, 0.9, last_epoch=at),
    "linear": lambda s, o, at: s.LinearLR(o, 0.5, total_iters=12, last_epoch=at),
    "polynomial": lambda s, o, at: s.PolynomialLR(o, 12, 2.0, last_epoch=at),
    "cosine": lambda s, o, at: s.CosineAnnealingLR(o, 12, last_epoch=at),
    "multiplicative": lambda s, o, at: s.MultiplicativeLR(o, lambda epoch: 0.9, last_epoch=at),
    "steps": lambda s, o, at: s.StepLR(o, 3, last_epoch=at),
    "milestones": lambda s, o, at: s.MultiStepLR(o, [2, 6, 8], last_epoch=at),
    "constant": lambda s, o, at: s.ConstantLR(o, 0.5, 7, last_epoch=at),
    "lambda": lambda s, o, at: s.LambdaLR(o, lambda epoch: 0.9 ** epoch, last_epoch=at),
}
CASES: dict[str, Case] = {
    **{f"{mode} by {factor}": scaled(mode, factor, dims) for mode, dims in (
        ("linear", 1), ("bilinear", 2), ("trilinear", 3), ("nearest", 1), ("nearest-exact", 2), ("bicubic", 2), ("area", 1))
       for factor in (1.3, 1.0, 2.0)},
    **{f"resumed {name}": resumed(make) for name, make in SCHEDULES.items()},
    **{f.__name__: f for f in (wrapped, divergences, ties_in_bags, ends, narrowed_by_a_tensor, results_that_are_no_views,
                               viewed_results, one_triangle, nothing_in_parts, reshaped_without_a_graph, rounded_quotients,
                               of_integers, shapes)}}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("name", CASES)
def test_it_is_as_in_pytorch(name: str, torch: Any) -> None:
    ours, theirs = (values(CASES[name](t)) for t in (gradcore, torch))
    flat = [_flat(x) for x in (ours, theirs)]
    np.testing.assert_allclose(flat[0], flat[1], rtol=1e-5, atol=1e-6)


def _flat(x: Any) -> Any:
    """All numbers in nested lists, in order."""
    if isinstance(x, list):
        return np.concatenate([_flat(v) for v in x]) if x else np.zeros(0)
    return np.asarray([x], np.float64)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: gradcore.nn.functional.interpolate(gradcore.ones(1, 1, 3), scale_factor=0.3, mode="linear"), "greater than 0"),
    (lambda: gradcore.nn.functional.pad(gradcore.ones(1, 1, 3), (-2, 2), "circular"), "wrapping around more than once"),
    (lambda: gradcore.nn.functional.pad(gradcore.ones(1, 1, 3), (-4, 2)), "-4 and 2 crops more than the 3 elements"),
    (lambda: gradcore.tensor_split(gradcore.tensor(1.0), 2), "at least a 1-dimensional"),
    (lambda: gradcore.hsplit(gradcore.ones(4), "abc"), "a number of sections, or a tuple of indices, but got str"),
    (lambda: gradcore.rot90(gradcore.ones(2, 2), dims=(0,)), "total rotation dims == 2"),
    (lambda: gradcore.arange(0, float("inf")), "unsupported range"),
    (lambda: gradcore.linspace(0, 1, 1.0), "'steps' must be int, not float"),
    (lambda: gradcore.isclose(gradcore.ones(1), 1), "must be Tensor, not int"),
    (lambda: gradcore.bmm(gradcore.ones(1, 2, 3), gradcore.ones(2, 3, 2)), "3 and 3 dimensions and equal length, but got"),
    (lambda: format(gradcore.ones(2), ".3f"), "unsupported format string"),
    (lambda: gradcore.optim.SGD([gradcore.ones(2)], lr=gradcore.ones(2)), "must be 1-element, but got float32"),
    (lambda: gradcore.optim.Adafactor([gradcore.ones(2)], lr=gradcore.ones(2)), "must be 1-element, but got float32"),
    (lambda: gradcore.nn.functional.adaptive_max_pool1d(gradcore.ones(1, 1, 3), ()), "an int or 1 of them, but got"),
])
def test_bad_input_is_told_in_words(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("absent", [(), ("running_mean", "running_var"), ("num_batches_tracked",),
                                    ("running_mean", "running_var", "num_batches_tracked")], ids=str)
@pytest.mark.parametrize("tracks", [True, False])
def test_statistics_of_batch_norm_that_are_taken_away(torch: Any, momentum: float | None, absent: tuple[str, ...],
                                                      tracks: bool) -> None:
    found: list[list[Any]] = []
    for library in (torch, gradcore):
        norm = library.nn.BatchNorm1d(3, momentum=momentum)
        x = library.arange(12.0).view(4, 3) ** 2
        norm(x)
        for name in absent:
            setattr(norm, name, None)
        norm.track_running_stats = tracks
        results = []
        for mode in (True, False, True):
            norm.train(mode)
            results.append(norm(x * 2).detach().numpy())
        found.append([*results, *(b.numpy() for b in norm.buffers())])
    for theirs, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


#: Calls with positions that cannot be, whose errors PyTorch raises as RuntimeError here and as IndexError there.
MISPLACED: dict[str, Callable[[Any], Any]] = {
    "gather": lambda t: t.ones(2, 3).gather(1, t.full((2, 1), 7)),
    "gather below 0": lambda t: t.ones(2, 3).gather(1, t.full((2, 1), -1)),
    "scatter": lambda t: t.ones(2, 3).scatter(1, t.full((2, 1), 3), 1.0),
    "scatter_add": lambda t: t.ones(2, 3).scatter_add(1, t.full((2, 1), 3), t.ones(2, 1)),
    "one_hot": lambda t: t.nn.functional.one_hot(t.tensor([0, 4]), 2),
    "embedding": lambda t: t.nn.functional.embedding(t.tensor([4]), t.ones(4, 2)),
    "index_select": lambda t: t.ones(2, 3).index_select(1, t.tensor([3])),
    "index_select by a matrix": lambda t: t.ones(2, 3).index_select(1, t.tensor([[0]])),
    "index_copy of too few": lambda t: t.ones(2, 3).index_copy(1, t.tensor([0, 1]), t.ones(2, 1)),
    "indices that do not broadcast": lambda t: t.ones(4, 4)[[0, 1], [0, 1, 2]],
    "writes there": lambda t: t.ones(4, 4).__setitem__(([0, 1], [0, 1, 2]), 1.0),
    "take": lambda t: t.ones(2, 3).take(t.tensor([6])),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", MISPLACED)
def test_positions_that_cannot_be_raise_what_a_program_for_pytorch_catches(torch: Any, name: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        MISPLACED[name](torch)
    with pytest.raises(theirs.type):
        MISPLACED[name](gradcore)


#: Arguments that cannot be, which PyTorch refuses with RuntimeError or ValueError by turns.
REFUSED: dict[str, Callable[[Any], Any]] = {
    "beta": lambda t: t.nn.functional.smooth_l1_loss(t.ones(2), t.ones(2), beta=-1.0),
    "delta": lambda t: t.nn.functional.huber_loss(t.ones(2), t.ones(2), delta=0.0),
    "p": lambda t: t.nn.functional.dropout(t.ones(2), 1.5), "p of torch": lambda t: t.dropout(t.ones(2), 1.5, True),
    "p of attention": lambda t: t.nn.functional.scaled_dot_product_attention(*[t.ones(1, 2, 2)] * 3, dropout_p=1.5),
    "no statistics": lambda t: t.nn.functional.batch_norm(t.ones(2, 2), None, None),
    "offsets": lambda t: t.nn.functional.embedding_bag(t.tensor([0, 1]), t.ones(2, 2), t.tensor([1])),
    "offsets of floats": lambda t: t.nn.functional.embedding_bag(t.tensor([0, 1]), t.ones(2, 2), t.tensor([0.0])),
    "randperm": lambda t: t.randperm(-1), "no bound": lambda t: t.arange(), "range without one": lambda t: t.range(),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_cannot_be_raise_what_a_program_for_pytorch_catches(torch: Any, name: str) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError)) as theirs:
        REFUSED[name](torch)
    with pytest.raises(theirs.type):
        REFUSED[name](gradcore)


@pytest.mark.oracle
def test_a_range_may_name_its_end_alone(torch: Any) -> None:
    for call in (lambda t: t.arange(end=3), lambda t: t.arange(end=3.0), lambda t: t.arange(0, end=3),
                 lambda t: t.arange(start=1, end=4, dtype=t.float64)):
        ours, theirs = call(gradcore), call(torch)
        assert ours.tolist() == theirs.tolist() and str(theirs.dtype) == f"torch.{ours.dtype}"


@pytest.mark.oracle
def test_tensors_without_values_look_as_pytorchs(torch: Any) -> None:
    def texts(t: Any) -> list[str]:
        leaf = t.ones(2, device="meta", requires_grad=True)
        made = [leaf, leaf * 2, t.ones(2, 3, device="meta", dtype=t.float64), t.ones(0, device="meta"),
                t.ones((), device="meta"), t.ones(3, device="meta", dtype=t.int64), t.nn.Linear(2, 1, device="meta").weight]
        return [repr(x) for x in made]

    assert texts(gradcore) == [text.replace("torch.", "gradcore.") for text in texts(torch)]


@pytest.mark.oracle
def test_values_of_meta_tensors_are_asked_for_with_errors_of_pytorchs_kinds(torch: Any) -> None:
    """As programs do that move a module off meta, and make it anew where that cannot be."""
    for library in (gradcore, torch):
        x = library.ones(2, device="meta")
        for call in (x.cpu, x.tolist, x.nonzero, x.unique, lambda x=x: x[x > 0], library.nn.Linear(2, 1, device="meta").cpu):
            with pytest.raises(NotImplementedError):
                call()
        with pytest.raises(RuntimeError):
            bool(x[0])

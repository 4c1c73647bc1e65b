"""Packed sequences compared with PyTorch's: packing, unpacking, and recurrent layers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, unpack_sequence
from tests.conftest import raises

LENGTHS = {"decreasing": [5, 4, 4, 1], "equal": [3, 3, 3], "mixed": [2, 5, 1, 4, 4], "one": [4]}
rng = np.random.default_rng(0)


def plain(x: Any) -> Any:
    return None if x is None else np.asarray(x.detach())


@pytest.mark.oracle
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_packing_and_back_are_torchs(lengths: list[int], batch_first: bool, torch: Any) -> None:
    shape = (len(lengths), 6, 3) if batch_first else (6, len(lengths), 3)
    values = rng.normal(size=shape).astype(np.float32)
    found = []
    for library in (gradcore, torch):
        rnn = library.nn.utils.rnn
        x = library.tensor(values, requires_grad=True)
        packed = rnn.pack_padded_sequence(x, library.tensor(lengths), batch_first, enforce_sorted=False)
        padded, sizes = rnn.pad_packed_sequence(packed, batch_first, padding_value=-1.0, total_length=7)
        assert padded.is_contiguous()
        (padded * padded).sum().backward()
        parts = [plain(t) for t in rnn.unpack_sequence(packed)]
        found.append([*[plain(t) for t in packed], plain(padded), plain(sizes), plain(x.grad), *parts])
    assert len(found[0]) == len(found[1])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize(("kind", "options"), [("RNN", {}), ("LSTM", {}), ("GRU", {}), ("LSTM", {"proj_size": 2})], ids=str)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("given", [False, True], ids=["", "with states"])
def test_recurrent_layers_along_packed_sequences_are_torchs(kind: str, options: dict[str, int], bidirectional: bool,
                                                            lengths: list[int], given: bool, torch: Any) -> None:
    ours = getattr(gradcore.nn, kind)(3, 4, num_layers=2, bidirectional=bidirectional, **options)
    theirs = getattr(torch.nn, kind)(3, 4, num_layers=2, bidirectional=bidirectional, **options)
    theirs.load_state_dict({k: torch.tensor(plain(v)) for k, v in ours.state_dict().items()})
    values = rng.normal(size=(5, len(lengths), 3)).astype(np.float32)
    first = rng.normal(size=(2, 4 if bidirectional else 2, len(lengths), 4)).astype(np.float32)
    found = []
    for library, layer in ((gradcore, ours), (torch, theirs)):
        x = library.tensor(values, requires_grad=True)
        states = [library.tensor(f[..., :options.get("proj_size", 4) if k == 0 else 4], requires_grad=True)
                  for k, f in enumerate(first)]
        hx = None if not given else tuple(states) if kind == "LSTM" else states[0]
        packed = library.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        out, last = layer(packed, hx)
        last = last if isinstance(last, tuple) else (last,)
        loss = (out.data * out.data).sum()
        for h in last:
            loss = loss + (h * h * h).sum()
        loss.backward()
        used = [x, *layer.parameters(), *(states[:len(last)] if given else [])]
        found.append([plain(t) for t in (out.data, *last, *[u.grad for u in used])])
        assert out.batch_sizes.tolist() == packed.batch_sizes.tolist()
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.oracle
@pytest.mark.parametrize(("sizes", "order"), [([3, 2], None), ([3, 2, 2], [2, 0]), ([3, 2, 2], [0, 0, 1, 2])],
                         ids=["fewer rows", "a choice", "repeated"])
def test_packed_sequences_made_by_hand_are_padded_as_torchs(sizes: list[int], order: Any, torch: Any) -> None:
    values, found = rng.normal(size=(7, 2)), []
    for library, batch_first in product((gradcore, torch), (False, True)):
        rnn, x = library.nn.utils.rnn, library.tensor(values, requires_grad=True)
        made = rnn.PackedSequence(x, library.tensor(sizes), None, None if order is None else library.tensor(order))
        padded, lengths = rnn.pad_packed_sequence(made, batch_first, padding_value=2.0, total_length=4)
        (padded * padded).sum().backward()
        found.append([plain(padded), plain(lengths), plain(x.grad)])
    for ours, theirs in zip(found[:2], found[2:], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_packed_run_is_the_run_of_each_sequence_alone() -> None:
    layer = gradcore.nn.LSTM(3, 4, bidirectional=True)
    sequences = [gradcore.randn(n, 3) for n in (2, 5, 1)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    assert isinstance(packed, PackedSequence) and packed.data.shape == (8, 3)
    out, (h, _) = layer(packed)
    for k, (x, y) in enumerate(zip(sequences, unpack_sequence(out), strict=True)):
        alone, (end, _) = layer(x)
        np.testing.assert_allclose(plain(y), plain(alone), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(plain(h[:, k]), plain(end), rtol=1e-5, atol=1e-6)


def test_the_input_is_multiplied_once_whatever_the_lengths_are() -> None:
    ops = []
    for lengths in ([4, 4, 4], [2, 5, 1, 4, 4]):
        layer = gradcore.nn.GRU(3, 4, bidirectional=True)
        packed = pack_sequence([gradcore.ones(n, 3, requires_grad=True) for n in lengths], enforce_sorted=False)
        with gradcore.step() as step:
            layer(packed)[0].data.sum().backward()
        launched = [r.invocation.op for r in step.recording.records if isinstance(r, gradcore.events.Launch)]
        ops.append([launched.count(name) for name in ("linear", "linear_grad", "gru")])
    # Four lengths that differ make four runs of each direction.
    assert ops == [[2, 2, 2], [2, 2, 8]]


def test_packing_and_padding_take_as_many_ops_whatever_the_lengths_are() -> None:
    counts = []
    for lengths in ([4, 4, 4], [6, 2, 5, 1, 3]):
        x = gradcore.ones(6, len(lengths), 3, requires_grad=True)
        with gradcore.step() as step:
            packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
            pad_packed_sequence(packed, total_length=7)[0].sum().backward()
        counts.append(sum(isinstance(r, (gradcore.events.Launch, gradcore.events.View)) for r in step.recording.records))
    assert counts[0] == counts[1]


def test_gradients_move_few_bytes_however_many_lengths_there_are() -> None:
    x = gradcore.ones(32, 32, 64, requires_grad=True)
    with gradcore.step() as step:
        padded, _ = pad_packed_sequence(pack_padded_sequence(x, range(32, 0, -1)))
        padded.sum().backward()
    begun = next(k for k, r in enumerate(step.log) if isinstance(r, gradcore.events.Mark) and r.label == "backward")
    made = sum(r.requested for r in step.log[begun:] if isinstance(r, gradcore.events.Alloc))
    # The gradient of each of 32 slices was as large as x, and added to the others'.
    assert made < 8 * x.nbytes and (x.grad[:, 0] == 1).all() and x.grad.sum().item() == 64 * 33 * 16


def test_it_moves_and_needs_no_numbers() -> None:
    layer = gradcore.nn.GRU(3, 4).to("meta")
    packed = pack_sequence([gradcore.randn(4, 3), gradcore.randn(2, 3)]).to("meta")
    out, last = layer(packed)
    padded, lengths = pad_packed_sequence(out)
    assert padded.shape == (4, 2, 4) and last.shape == (1, 2, 4) and lengths.tolist() == [4, 2]
    assert packed.to(dtype=gradcore.float64).data.dtype == gradcore.float64


def test_growing_batch_sizes_are_refused() -> None:
    made = PackedSequence(gradcore.ones(7, 2), gradcore.tensor([2, 3, 2]))
    with raises(ValueError, "decreasing", "[2, 3, 2]"):
        pad_packed_sequence(made)


def test_what_does_not_fit_is_refused() -> None:
    x = gradcore.zeros(3, 2, 4)
    with raises(RuntimeError, "equal to batch_size, but got 1 (batch_size=2)"):
        pack_padded_sequence(x, [3])
    with raises(RuntimeError, "greater than 0"):
        pack_padded_sequence(x, [3, 0])
    with raises(RuntimeError, "sorted in decreasing order", "enforce_sorted=False"):
        pack_padded_sequence(x, [2, 3])
    with raises(RuntimeError, "Expected lengths of at most 3, but got 4"):
        pack_padded_sequence(x, [4, 3])
    packed = pack_padded_sequence(x, [3, 2])
    with raises(ValueError, "total_length=2 and max sequence length being 3"):
        pad_packed_sequence(packed, total_length=2)
    with raises(RuntimeError, "must be equal to input_size. Expected 5, got 4"):
        gradcore.nn.RNN(5, 2)(packed)
    with raises(RuntimeError, "Expected hidden size (1, 2, 2), got [1, 3, 2]"):
        gradcore.nn.RNN(4, 2)(packed, gradcore.zeros(1, 3, 2))


def test_sizes_lie_on_the_host_whatever_the_default_device() -> None:
    with gradcore.device("meta"):
        packed = pack_padded_sequence(gradcore.ones(5, 3, 4), [5, 3, 2])
        assert packed.data.device.type == "meta" and packed.batch_sizes.tolist() == [3, 3, 2, 1, 1]
        made, _ = gradcore.nn.LSTM(4, 6)(packed)
        padded, lengths = pad_packed_sequence(made)
        assert tuple(padded.shape) == (5, 3, 6) and lengths.tolist() == [5, 3, 2]


def test_unsorted_sequences_on_meta_say_how_to_pad_them() -> None:
    packed = pack_padded_sequence(gradcore.ones(5, 3, 4, device="meta"), [3, 5, 2], enforce_sorted=False)
    with raises(gradcore.errors.DataDependentShape, "pad_packed_sequence: how sequences were sorted", "decreasing order"):
        pad_packed_sequence(packed)


@pytest.mark.parametrize("level", ["events", "counts"])
def test_sizes_on_the_host_take_nothing_of_the_pool_so_meta_predicts_the_cpus_peak(level: str) -> None:
    found = []
    for device in ("cpu", "meta"):
        gradcore.empty_cache(device)
        with gradcore.device(device), gradcore.step(device=device, level=level) as step:
            packed = pack_padded_sequence(gradcore.ones(50, 100, 2), [50] * 100)
            padded, lengths = pad_packed_sequence(packed)
        found.append((step.report.peak.requested, step.report.peak.allocated, step.report.peak.reserved))
        assert packed.batch_sizes.dtype == lengths.dtype == np.int64
        del packed, padded, lengths
    assert found[0] == found[1]


@pytest.mark.oracle
def test_packed_sequences_are_converted_and_inverted_as_pytorchs(torch: Any) -> None:
    for library in (gradcore, torch):
        rnn = library.nn.utils.rnn
        packed = rnn.pack_sequence([library.tensor([1.5, -2.0]), library.tensor([3.0, 4.0, 5.0])], enforce_sorted=False)
        assert [str(getattr(packed, name)().data.dtype).split(".")[-1] for name in (
            "double", "float", "half", "long", "int", "short", "char", "byte")] == [
            "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8"]
        assert packed.double().unsorted_indices is packed.unsorted_indices
        assert packed.float() is packed and packed.to(library.float32) is packed and packed.cpu() is packed
        assert not packed.is_cuda and not packed.is_pinned()
        made = rnn.PackedSequence(packed.data, packed.batch_sizes, packed.sorted_indices)
        assert made.unsorted_indices.tolist() == [1, 0]
        assert rnn.pad_packed_sequence(made)[1].tolist() == [2, 3]
        assert rnn.invert_permutation(library.tensor([2, 0, 1])).tolist() == [1, 2, 0] and rnn.invert_permutation(None) is None


@pytest.mark.oracle
def test_padding_takes_a_tensor_and_the_first_dtype_as_pytorchs(torch: Any) -> None:
    for library in (gradcore, torch):
        pad = library.nn.utils.rnn.pad_sequence
        assert pad(library.tensor([[1, 2], [3, 4]])).tolist() == [[1, 3], [2, 4]]
        for first in (True, False):
            made = pad([library.tensor([1, 2]), library.tensor([3.5])], first)
            assert made.dtype == library.int64 and made.sum().item() == 6


@pytest.mark.oracle
def test_sizes_and_options_of_layers_are_checked_as_pytorchs(torch: Any) -> None:
    for library in (gradcore, torch):
        for error, options in ((ValueError, {"input_size": 0}), (ValueError, {"hidden_size": 0}),
                               (ValueError, {"num_layers": 0}), (ValueError, {"dropout": True}), (TypeError, {"bias": 0})):
            with pytest.raises(error, match=next(iter(options))):
                library.nn.GRU(**{"input_size": 3, "hidden_size": 4, **options})

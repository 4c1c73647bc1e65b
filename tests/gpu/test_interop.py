"""Arrays of other libraries on a GPU: the same bytes on both sides, kept alive and accounted for."""

from __future__ import annotations

import numpy as np
import pytest

import gradcore
from gradcore.utils.checkpoint import get_device_states, set_device_states
from tests.conftest import raises
from tests.gpu.test_streams import late

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")


def array_of(values):
    """A CuPy array, filled by a copy only."""
    array = cupy.ndarray(values.shape, values.dtype)
    array.set(values)
    return array


def again_at(place, make):
    """What ``make`` makes until something lies at an address, which is free; the last one does."""
    held = [make()]
    while cupy.asarray(held[-1]).data.ptr != place:
        assert len(held) < 64
        held.append(make())
    return held


VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_a_tensor_over_an_array_of_cupys():
    device = gradcore.device("cuda")
    before = device.ledger.allocated
    array = array_of(VALUES)
    x = gradcore.from_dlpack(array)
    assert str(x.device) == "cuda:0" and x.data_ptr() == array.data.ptr and device.ledger.allocated == before
    x.mul_(2)
    np.testing.assert_array_equal(cupy.asnumpy(array), VALUES * 2)
    del array
    y = gradcore.from_dlpack(array_of(VALUES))
    np.testing.assert_array_equal((x + y).cpu().numpy(), VALUES * 3)


def test_as_tensor_shares_what_lies_on_its_device():
    array = array_of(VALUES)
    for make in (gradcore.as_tensor, gradcore.asarray):
        assert make(array, device="cuda").data_ptr() == array.data.ptr
    for options in ({"device": "cuda", "dtype": gradcore.float64}, {}):
        x = gradcore.as_tensor(array, **options)
        assert x.storage.nbytes and x.device == options.get("device", "cpu") and x.tolist() == VALUES.tolist()
    for options in ({"copy": True}, {"requires_grad": True}, {"copy": True, "device": "cpu"}):
        x = gradcore.asarray(array, **{"device": "cuda", **options})
        assert x.storage.nbytes and x.device == options.get("device", "cuda") and x.tolist() == VALUES.tolist()
        assert x.requires_grad == ("requires_grad" in options)


def test_layouts_and_copies():
    array = array_of(VALUES)
    turned = gradcore.from_dlpack(array.T)
    assert turned.stride() == (1, 4) and turned.data_ptr() == array.data.ptr
    np.testing.assert_array_equal(turned.cpu().numpy(), VALUES.T)
    assert gradcore.from_dlpack(array, copy=True).data_ptr() != array.data.ptr
    assert str(gradcore.from_dlpack(array, device="cpu").device) == "cpu"
    assert gradcore.from_dlpack(array[:0]).shape == (0, 4)
    for make, error, text in (
            (lambda: gradcore.from_dlpack(array, device="cpu", copy=False), ValueError, "for another device, must be copied"),
            (lambda: gradcore.from_dlpack(array[::-1]), ValueError, "stride in the given cupy array is negative"),
            (lambda: gradcore.from_dlpack(cupy.ndarray(3, np.complex64)), TypeError, "cupy.ndarray of type complex64")):
        with raises(error, text):
            make()


def test_tensor_copies_arrays_of_cupys():
    array, two = array_of(VALUES), array_of(np.array(2.0))
    for given, wanted in ((array, VALUES), (array.T, VALUES.T), (array[:0], VALUES[:0]), ([array[0], [5, 6, 7, 8]],
                          [[0, 1, 2, 3], [5, 6, 7, 8]]), ([two, 1.0], np.array([2.0, 1.0]))):
        for options in ({}, {"device": "cuda"}, {"device": "cuda", "dtype": gradcore.float64, "requires_grad": True}):
            x = gradcore.tensor(given, **options)
            assert x.storage.nbytes == x.nbytes and x.device == options.get("device", "cpu")
            assert (x.numpy(force=True) == wanted).all() and x.requires_grad == ("requires_grad" in options)
            assert x.dtype == options.get("dtype", gradcore.float64 if x.shape == (2,) else gradcore.float32)
    x = gradcore.ones(2, device="cuda").new_tensor(array)
    array.set(VALUES * 0)
    assert x.device == "cuda" and x.tolist() == VALUES.tolist()


def test_arrays_of_cupys_as_indices():
    rows, mask = array_of(np.array([2, 0])), array_of(np.array([True, False, True]))
    x = gradcore.tensor(VALUES, device="cuda")
    assert x[rows].tolist() == VALUES[[2, 0]].tolist() and x[mask, 1].tolist() == VALUES[[0, 2], 1].tolist()
    x[mask] = 7
    x[rows, 0] = 9
    assert x[:, :2].tolist() == [[9, 7], [4, 5], [9, 7]]


def test_an_array_over_a_tensor_keeps_its_bytes():
    device = gradcore.device("cuda")
    before = device.ledger.allocated
    x = gradcore.tensor(VALUES, device="cuda")
    array = cupy.from_dlpack(x)
    assert array.data.ptr == x.data_ptr()
    x.mul_(2)
    del x
    np.testing.assert_array_equal(cupy.asnumpy(array), VALUES * 2)
    assert device.ledger.allocated > before
    with gradcore.step(device="cuda") as s:
        pass
    assert "held outside" in str(s.report)
    del array
    assert device.ledger.allocated == before


def test_gradients_and_meta_are_refused():
    with raises(BufferError, "require gradient, use tensor.detach()"):
        cupy.from_dlpack(gradcore.ones(3, device="cuda", requires_grad=True))


def test_bfloat16_goes_through_and_back():
    x = gradcore.tensor(VALUES, device="cuda").to(gradcore.bfloat16)
    again = gradcore.from_dlpack(x)
    assert again.dtype == gradcore.bfloat16 and again.data_ptr() == x.data_ptr()
    np.testing.assert_array_equal(again.float().cpu().numpy(), VALUES)


def test_streams_are_in_order():
    side = gradcore.cuda.Stream()
    with gradcore.cuda.stream(side):
        x = gradcore.from_dlpack(array_of(VALUES)) * 3
        shown = cupy.from_dlpack(x)
    side.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(shown), VALUES * 3)


def test_an_array_shows_what_was_computed_whatever_stream_of_cupys_is_current():
    theirs = cupy.cuda.Stream(non_blocking=True)
    for k in range(2):
        x = gradcore.full((1 << 20,), k + 3.0, device="cuda") * 2
        with theirs:
            # CuPy's own protocol would wait for this stream, which has no work.
            array = cupy.from_dlpack(x) if k else cupy.asarray(x)
            assert (cupy.asnumpy(array, stream=theirs) == 2 * k + 6).all()


@pytest.mark.parametrize("show", [cupy.from_dlpack, cupy.asarray])
def test_bytes_that_an_array_has_shown_are_reused_behind_the_stream_that_it_was_used_on(show):
    theirs, copy = cupy.cuda.Stream(non_blocking=True), cupy.ndarray((3 << 18,), np.float32)
    x = gradcore.full((3 << 18,), 3.0, device="cuda")
    place = x.data_ptr()
    with theirs:
        for _ in range(3):
            array = show(x)
        copy.data.copy_from_device_async(array.data, array.nbytes, theirs)
    assert len(x.storage.block.users) == 1
    del x, array
    *_, y = held = again_at(place, lambda: gradcore.full((3 << 18,), 9.0, device="cuda"))
    assert y.max().item() == 9
    theirs.synchronize()
    assert (cupy.asnumpy(copy) == 3).all()
    del held


def test_a_stream_of_cupys_moves_none_of_our_work():
    x = gradcore.tensor(VALUES, device="cuda")
    side = cupy.cuda.Stream(non_blocking=True)
    # From the third time on, launches are repeated from a record.
    for _ in range(4):
        with side:
            doubled, product, lower = x * 2, x @ x.T, x.tril()
            assert cupy.cuda.get_current_stream() is side
        for ours, theirs in ((doubled, VALUES * 2), (product, VALUES @ VALUES.T), (lower, np.tril(VALUES))):
            np.testing.assert_allclose(ours.cpu().numpy(), theirs, rtol=1e-6)
        del doubled, product, lower, ours


def test_a_capture_leaves_cupys_stream_current():
    x, side = gradcore.tensor(VALUES, device="cuda"), cupy.cuda.Stream(non_blocking=True)
    f = gradcore.compile(lambda x: x * 2 + 1)
    with side:
        for _ in range(3):
            y = f(x)
            assert cupy.cuda.get_current_stream() is side
    np.testing.assert_array_equal(y.cpu().numpy(), VALUES * 2 + 1)
    assert "are captured in one graph" in f.explain()


def test_behind_a_stream_of_ours_cupys_is_the_one_before():
    device, ours = gradcore.device("cuda"), gradcore.cuda.Stream()
    for theirs in (cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null):
        with theirs:
            for block in (gradcore.cuda.stream(ours), ours, device.use(ours.queue)):
                with block:
                    assert cupy.cuda.get_current_stream().ptr == ours.cuda_stream
                    with gradcore.cuda.stream(gradcore.cuda.default_stream()):
                        assert cupy.cuda.get_current_stream().ptr == 0
                    assert cupy.cuda.get_current_stream().ptr == ours.cuda_stream
                assert cupy.cuda.get_current_stream() is theirs and device.current is device.stream


def test_the_name_of_a_device_is_the_driver_s():
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    assert name and {gradcore.cuda.get_device_name(of) for of in (None, 0, "cuda", gradcore.device("cuda:0"))} == {name}
    with raises(ValueError, "Expected a cuda device, but got: cpu"):
        gradcore.cuda.get_device_name("cpu")


def test_what_a_device_is_capable_of_is_the_driver_s():
    found = cupy.cuda.runtime.getDeviceProperties(0)
    assert gradcore.cuda.get_device_capability() == (found["major"], found["minor"])
    assert gradcore.cuda.is_bf16_supported()
    assert gradcore.cuda.is_bf16_supported(including_emulation=False) == (found["major"] >= 8)


def test_properties_and_memory_are_the_driver_s():
    found, ours = cupy.cuda.runtime.getDeviceProperties(0), gradcore.cuda.get_device_properties(0)
    assert (ours.total_memory, ours.multi_processor_count, ours.L2_cache_size, ours.name) == (
        found["totalGlobalMem"], found["multiProcessorCount"], found["l2CacheSize"], found["name"].decode())
    free, total = gradcore.cuda.mem_get_info()
    assert 0 < free < total == cupy.cuda.runtime.memGetInfo()[1]
    x = gradcore.zeros(64 << 20, device="cuda")
    # Another process may free more meanwhile than this one has taken.
    assert 0 < gradcore.cuda.mem_get_info("cuda:0")[0] < total and gradcore.cuda.is_initialized()
    stats = gradcore.cuda.memory_stats(0)
    assert gradcore.cuda.memory_allocated(0) == gradcore.cuda.memory_allocated("cuda:0") > 0
    assert stats["allocated_bytes.all.current"] == gradcore.cuda.memory_allocated() >= x.nbytes
    assert stats["reserved_bytes.all.peak"] == gradcore.cuda.max_memory_reserved()
    for ask in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved", "memory_stats",
                "memory_summary", "reset_peak_memory_stats"):
        with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
            getattr(gradcore.cuda, ask)("cpu")
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"), gradcore.cuda.use_for_cupy(device="cpu"):
        pass


def test_a_fraction_of_the_memory_is_a_limit():
    total = gradcore.cuda.mem_get_info()[1]
    try:
        gradcore.cuda.set_per_process_memory_fraction(0.0)
        gradcore.cuda.empty_cache()
        with raises(gradcore.cuda.OutOfMemoryError, "limit 1;"):
            gradcore.zeros(64 << 20, device="cuda")
        gradcore.cuda.set_per_process_memory_fraction(1.0)
        assert gradcore.device("cuda").stack.limit.limit == total
        gradcore.zeros(64, device="cuda")
    finally:
        gradcore.set_memory_limit(None, "cuda")


def test_the_state_of_a_generator_is_kept_on_the_host():
    states = gradcore.cuda.get_rng_state_all()
    assert len(states) == gradcore.cuda.device_count() and {s.device.type for s in states} == {"cpu"}
    first = gradcore.rand(5, device="cuda").cpu().tolist()
    assert gradcore.rand(5, device="cuda").cpu().tolist() != first
    gradcore.cuda.set_rng_state_all(states)
    assert gradcore.rand(5, device="cuda").cpu().tolist() == first
    saved = get_device_states([gradcore.rand(5), gradcore.rand(5, device="cuda")])
    second = gradcore.rand(5, device="cuda").cpu().tolist()
    set_device_states(*saved)
    assert saved[0] == [0] and gradcore.rand(5, device="cuda").cpu().tolist() == second


def test_a_stream_of_cupys_and_ours_use_bytes_one_after_the_other():
    theirs = cupy.cuda.Stream(non_blocking=True)

    def array():
        with gradcore.memory.use_for_cupy(), theirs:
            found = cupy.ndarray((3 << 20,), np.uint8)
            found.data.memset_async(0xFF, found.nbytes, theirs)
        return found

    device = gradcore.device("cuda")
    first = array()
    place = first.data.ptr
    # Its bytes are CuPy's until this is done.
    del first
    *_, x = held = again_at(place, lambda: gradcore.zeros(3 << 18, device=device))
    assert x.sum().item() == 0
    theirs.synchronize()
    assert x.sum().item() == 0
    x.fill_(1)
    del x, held
    held = again_at(place, array)
    theirs.synchronize()
    device.synchronize()
    assert (cupy.asnumpy(held[-1]) == 0xFF).all()


def adds(x, y):
    x.add_(1)
    return (x + y)[1:].sum(0, keepdim=True)


@pytest.mark.parametrize("lies", ["in the same array", "in a tensor", "in a captured tensor", "apart"])
def test_a_captured_program_sees_what_it_writes_to_memory_that_has_two_names(lies):
    def found(compiled):
        x = gradcore.arange(300.0, device="cuda").view(3, 100)
        array = cupy.from_dlpack(x)
        one = gradcore.from_dlpack(array if lies == "apart" else array[:2])
        other = {"in the same array": gradcore.from_dlpack(array[1:]), "apart": gradcore.from_dlpack(array_of(VALUES[:1, :1]))}
        f = (lambda one: adds(x[:2], one)) if "captured" in lies else lambda *both: adds(*both)
        f = gradcore.compile(f) if compiled else f
        given = (one,) if "captured" in lies else (one, other.get(lies, x[:2]))
        made = [f(*given).tolist() for _ in range(5)]
        assert not compiled or ("captured in one graph" in f.explain()) == (lies == "apart")
        return made

    assert found(True) == found(False)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_captured_program_rounds_as_an_eager_one_wherever_an_array_begins(parts):
    values = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    array, w = array_of(values), gradcore.full((2,), 3.0, device="cuda", requires_grad=parts > 1)

    def f(x):
        return gradcore.stack([x.sum(), (x * x * w[0]).mean()]) * w

    g = gradcore.compile(f)
    for first in (0, 0, 1, 1, 3, 64, 0, 1, 0):
        x = gradcore.from_dlpack(array[first:first + 4000])
        found = [(y := call(x)).tolist() + (gradcore.autograd.grad(y.sum(), w)[0].tolist() if parts > 1 else [])
                 for call in (g, f)]
        assert found[0] == found[1]
        assert ("in its last run its kernels were launched one by one: the memory of an argument, another library's, does not "
                "begin at a multiple of 256 bytes" in g.explain()) == (first % 64 > 0)
    assert "are captured in one graph" in g.explain()


@pytest.mark.parametrize("kind", ["SGD", "Adam", "RMSprop"])
def test_a_rate_on_the_gpu_is_read_behind_what_wrote_it_inside_a_stream_of_cupys(kind):
    def trained(stream):
        p, rate = gradcore.zeros(4, device="cuda", requires_grad=True), gradcore.tensor(1.0, device="cuda")
        optimizer, found = getattr(gradcore.optim, kind)([p], lr=rate), []
        for _ in range(4):
            p.grad = gradcore.ones(4, device="cuda")
            late(gradcore.device("cuda"))
            rate.mul_(0.5)
            with stream:
                optimizer.step()
            found += p.tolist()
        return found

    assert trained(cupy.cuda.Stream(non_blocking=True)) == trained(cupy.cuda.Stream.null)

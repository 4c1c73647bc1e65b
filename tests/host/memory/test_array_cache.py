"""Array objects are made once for each tensor's place in a segment, and go with the segment."""

from __future__ import annotations

from weakref import ref

import gradcore
from gradcore.memory.resource import Block, Segment, Stream

MiB = 1 << 20


def test_a_tensor_at_the_same_place_has_the_same_array() -> None:
    # A part of a large segment, which is merged with its neighbors as soon as it is free.
    x = gradcore.empty(3 * MiB, dtype=gradcore.uint8)
    array, place = x.array, x.data_ptr()
    del x
    gradcore.empty(5 * MiB, dtype=gradcore.uint8)
    y = gradcore.empty(3 * MiB, dtype=gradcore.uint8)
    assert y.data_ptr() == place and y.array is array
    assert y.view(3, MiB).array is y.view(3, MiB).array


def test_training_steps_make_no_more_arrays(monkeypatch) -> None:
    device, made = gradcore.device("cpu"), []
    make = type(device).make_array
    monkeypatch.setattr(type(device), "make_array", lambda *of: made.append(of) or make(*of))
    model = gradcore.nn.Sequential(*(gradcore.nn.Linear(512, 512) for _ in range(4)))
    optimizer, x = gradcore.optim.SGD(model.parameters(), lr=0.1), gradcore.ones(1024, 512)

    def step() -> None:
        # Activations lie in its segment, and are merged for it.
        gradcore.empty(100 * MiB, dtype=gradcore.uint8)
        optimizer.zero_grad()
        (model(x) ** 2).sum().backward()
        optimizer.step()

    for _ in range(5):
        step()
    assert made
    made.clear()
    for _ in range(5):
        step()
    assert not made


def test_arrays_go_with_their_segment() -> None:
    x = gradcore.empty(700 * MiB, dtype=gradcore.uint8, device="cpu")
    array, segment = ref(x.array), x.storage.block.segment
    del x
    assert array() is not None
    gradcore.empty_cache("cpu")
    assert array() is None and not segment.arrays


def test_arrays_of_sizes_that_never_come_again_do_not_add_up() -> None:
    segment, stream = Segment(1 << 40, 0, None), Stream(0)
    first = Block(segment, 0, 512, stream, [])
    first.arrays["a spec"] = "an array"
    for k in range(1, 10_000):
        Block(segment, 512 * k, 512, stream, [])
        assert len(segment.arrays) <= 1024
    assert first.arrays == {"a spec": "an array"}, "a block goes on with those that it has"

"""Which addresses of results allow a norm to be fused: what other threads still read is not overwritten."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

from gradcore.devices.gpu import fused as gpu_fused
from tests.host.cuda.emulator import Copy


def fused(kind: str, *steps: list[Any]) -> Any:
    return gpu_fused.fused(kind, [[("kernel", args)] for args in steps], lambda kernel, op: kernel)


class Room:
    """Adjacent tensors, as a plan may place them."""

    def __init__(self) -> None:
        self.whole = Copy(np.zeros(128, np.float32)).cupy()
        self.x, self.out, self.result, self.dy, self.other = map(self.matrix, (0, 8, 16, 24, 32))
        self.weight, self.mean, self.bias, self.workspace = (self.whole[k:k + 4] for k in (40, 44, 48, 52))
        self.dweight, self.dbias = self.whole[56:60], self.whole[60:64]

    def matrix(self, first: int) -> Any:
        return self.whole[first:first + 8].reshape(2, 4)


def test_relu_of_a_norm_lies_apart_from_what_it_reads() -> None:
    room = Room()
    for place, joined in ((room.result, True), (room.out, True), (room.x, False), (room.matrix(4), False),
                          (room.matrix(36), False), (room.matrix(50), False)):
        given = [room.x, room.weight, None, None, None, room.out, room.mean, room.mean, room.workspace]
        found = fused("batch norm with relu", given, [room.out, place])
        if joined:
            assert found == [[("kernel", given)], []]
            assert given[5] is place and given[9:] == [True], "a run puts what it brings into the same list"
        else:
            assert found is None and given[5] is room.out and len(given) == 9
    for cotangent, place, joined in ((room.dy, room.result, True), (room.dy, room.dy, False), (None, room.result, False),
                                     (room.dy, room.x, False)):
        given = [room.x, room.weight, None, room.mean, room.mean, room.out, room.workspace]
        found = fused("batch norm with relu gradient", given, [room.out, room.other], [cotangent, room.other, place])
        if joined:
            assert found == [[("kernel", given)], [], []]
            assert given[5] is place and given[7] is True and given[8] is room.dy
        else:
            assert found is None and given[5] is room.out and len(given) == 7


def test_a_counter_goes_with_its_norm() -> None:
    room, count = Room(), Copy(np.zeros((), np.int64)).cupy()
    for held, relu, joined in ((count, True, True), (count, False, True), (None, True, False)):
        given = [room.x, room.weight, None, None, None, room.out, room.mean, room.mean, room.workspace]
        found = fused("counted batch norm", [held, 1], given, *[[room.out, room.result]] * relu)
        if joined:
            assert found == [[("kernel", given)], [], *[[]] * relu]
            assert given[5] is (room.result if relu else room.out) and given[9] is relu and given[10] is count
        else:
            assert found is None and given[5] is room.out and len(given) == 9


def test_gradients_overwrite_what_one_thread_reads_or_none() -> None:
    room = Room()
    rest = room.dweight, room.dbias, room.workspace
    for cotangent, shown, place, behind, joined in (
            (room.dy, room.other, room.result, rest, True), (room.dy, room.other, room.dy, rest, True),
            (room.dy, room.other, room.other, rest, True), (room.dy, room.other, room.matrix(28), rest, False),
            (room.dy, room.other, room.result, (room.whole[32:36], *rest[1:]), False),
            (None, room.other, room.result, rest, False), (room.dy, None, room.result, rest, False)):
        given = [room.out, room.x, room.weight, room.mean, room.mean, place, *behind]
        found = fused("relu gradient with batch norm's", [cotangent, shown, room.out], given)
        if joined:
            assert found == [[], [("kernel", given)]]
            assert given[0] is room.dy and given[9:11] == [True, None] and given[11] is room.other
        else:
            assert found is None and given[0] is room.out and len(given) == 9
    # One block a channel leaves the workspace alone, so it may lie anywhere.
    for x, joined in ((room.x, True), (None, False)):
        given = [room.out, x, room.weight, room.mean, room.mean, room.result, *rest[:2], room.whole[24:28]]
        assert (fused("relu gradient with batch norm's", [room.dy, room.other, room.out], given) is not None) == joined


def test_relu_made_again_goes_to_the_gradients_or_to_their_cotangent() -> None:
    room = Room()
    for dweight, joined in ((room.dweight, True), (room.whole[24:28], False)):
        again = [room.x, room.weight, room.bias, room.mean, room.mean, room.out, room.workspace]
        given = [room.out, room.x, room.weight, room.mean, room.mean, room.result, dweight, room.dbias, room.workspace]
        steps = again, [room.out, room.out], [room.dy, room.out, room.other], given
        found = fused("batch norm again with relu and gradients", *steps)
        if joined:
            assert found == [[], [], [], [("kernel", given)]]
            assert given[0] is room.dy and given[9] is True and given[10] is room.bias and given[11] is None
        else:
            assert found == [[("kernel", again)], [], [], [("kernel", given)]]
            assert again[5] is room.other and again[7] is True and again[8] is room.dy and len(given) == 9


def test_a_sum_lies_where_one_thread_reads() -> None:
    room = Room()
    x, dy, result, out = room.x, room.dy, room.result, room.out
    for a, b, total, after, joined in (
            (x, dy, result, out, True), (x, dy, x, out, True), (x, dy, result, dy, True), (dy, dy, dy, out, True),
            (None, dy, result, out, False), (x, None, result, out, False), (x, dy, room.matrix(4), out, False),
            (x, dy, result, room.matrix(28), False), (x, room.matrix(40), result, out, False)):
        for kind, given in (("layer norm", [total, room.weight, room.weight, after, room.mean, room.mean, room.workspace]),
                            ("RMS norm", [total, room.weight, after, room.mean])):
            count = len(given)
            found = fused(f"sum with {kind}", [a, b, total], given)
            if joined:
                assert found == [[], [("kernel", given)]]
                assert given[count] is a and given[count + 1] is b
            else:
                assert found is None and len(given) == count


def test_dx_is_added_to_nothing_that_is_read() -> None:
    room = Room()
    rest = room.dweight, room.dbias, room.workspace
    for total, joined in ((room.result, True), (room.dy, False), (room.x, False), (room.matrix(54), False)):
        for kind, read, made in (("layer norm", [room.weight, room.mean, room.mean], rest),
                                 ("RMS norm", [room.weight, room.mean], rest[1:])):
            given = [room.dy, room.x, *read, room.out, *made]
            first, count = 2 + len(read), len(given)
            found = fused(f"{kind} gradient added", given, [total, room.out])
            if joined:
                assert found == [[("kernel", given)], []]
                assert given[first] is total and given[count:] == [True]
            else:
                assert found is None and given[first] is room.out and len(given) == count


@pytest.mark.parametrize("added", [False, True], ids=["alone", "added"])
def test_a_norm_is_recomputed_with_its_gradient_apart_from_what_is_read_later(added: bool) -> None:
    room = Room()
    weight, dparameter = room.whole[80:96].reshape(4, 4), room.whole[96:112].reshape(4, 4)
    dlinear, rstd = room.whole[64:68], room.whole[68:72]

    def given(dy: Any = room.dy, out: Any = room.out, result: Any = room.result, dweight: Any = room.dweight,
              workspace: Any = room.workspace, weight: Any = weight, bias: Any = room.bias) -> list[list[Any]]:
        """The arguments of layer norm recomputed, of the linear layer's gradients, of the norm's and of the addition."""
        between = room.matrix(112)
        return [[room.x, room.weight, bias, room.mean, rstd, out],
                [dy, out, weight, between, dparameter, dlinear],
                [between, room.x, room.weight, room.mean, rstd, room.matrix(120) if added else result, dweight, room.dbias,
                 workspace],
                *[[result, room.matrix(120)]] * added]

    steps = given()
    kind = "layer norm again with gradients" + ", added" * added
    nothing, calls, *rest = fused(kind, *steps)
    assert nothing == [] and rest == [[] for _ in steps[2:]]
    (before, first), (kernel, slopes), (after, last) = calls
    assert (kernel, slopes) == ("kernel", steps[2]), "a run puts what it brings into the same list"
    assert slopes[5] is room.result and slopes[9] is added and slopes[10] is room.out and slopes[11] is room.bias
    assert [c.keywords["needs"] for c in (before, after)] == [(True, False, False), (False, True, True)]
    assert first[:2] == [room.dy, None] and last[:3] == [room.dy, room.out, None] and len(last) == 5
    # What the gradient of the norm writes is not what the linear layer's read after it, or what others read in the meantime.
    for changes in ({"result": room.out}, {"result": room.dy}, {"result": dparameter[:2]}, {"dweight": room.out[0]},
                    {"workspace": room.dy.reshape(-1)[4:]}, {"workspace": dlinear}, {"out": room.x}, {"dy": None},
                    {"weight": None}, {"bias": room.whole[112:116]}, {"bias": room.result[0]}, {"bias": room.dbias},
                    {"bias": room.whole[49:53]}):
        steps = given(**changes)
        found = fused(kind, *steps)
        if added:
            # The addition is fused alone.
            assert [len(step) for step in found] == [1, 1, 1, 0] and steps[2][9:] == [True]
        else:
            assert found is None and len(steps[2]) == 9

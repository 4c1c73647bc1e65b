"""The gradient of a linear layer's input through the relu before it, in one launch of a replay, without a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore import nn
from gradcore.devices.gpu import fused as gpu_fused
from gradcore.devices.gpu import gemm as gpu_gemm
from gradcore.devices.gpu.gemm import CublasLt
from gradcore.devices.gpu.kernels.linalg import input_grad_through_relu, linear_grad
from gradcore.program.planning.fusion import groups
from tests.host.cuda.captured_steps import Stepping, data, logged, program_of, same_steps
from tests.host.cuda.emulator import Copy
from tests.host.cuda.graph_bed import Bed, QueuedLt, bits, emulator_of

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]

F = nn.functional
KIND = "linear gradient with relu's"


class Training(Stepping):
    """A step of a network with two relus; those parameters that ``frozen`` names need no gradients."""

    def __init__(self, wrap: Any = lambda f: f, frozen: tuple[str, ...] = (), relu: Any = nn.ReLU) -> None:
        gradcore.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), relu(), nn.Linear(8, 8), relu(), nn.Linear(8, 3)).to("cuda")
        for name, p in model.named_parameters():
            p.requires_grad_(name not in frozen)
        super().__init__(model, wrap)

    def state(self) -> list[bytes]:
        return [bits(t) for p in self.model.parameters() for t in (p, p.grad) if t is not None]


#: By case: the parameters without gradients.
FROZEN = {"all": (), "one weight": ("2.weight",), "one bias": ("4.bias",), "a whole layer": ("2.weight", "2.bias")}


def differentiated(wrap: Any = lambda f: f) -> list[bytes]:
    """Of these functions, relu's result is read twice, has another shape, or its gradient is returned."""
    gradcore.manual_seed(4)
    one, two = (nn.Linear(6, 6).to("cuda") for _ in range(2))
    found = []

    def twice(x: Any) -> Any:
        h = F.relu(one(x))
        return (two(h) * h).sum()

    def reshaped(x: Any) -> Any:
        return two(F.relu(one(x).reshape(3, 10)).reshape(5, 6)).sum()

    def asked(x: Any) -> Any:
        h = F.relu(one(x))
        loss = two(h).sum()
        return gradcore.autograd.grad(loss, [h, *one.parameters()])

    returned = wrap(asked)
    for k in range(3):
        found += map(bits, returned(data(k)[0]))
    for f in (twice, reshaped):
        def step(x: Any, f: Any = f) -> Any:
            for p in (*one.parameters(), *two.parameters()):
                p.grad = None
            loss = f(x)
            loss.backward()
            return loss

        run = wrap(step)
        for k in range(3):
            found += [bits(run(data(k)[0])), *(bits(p.grad) for p in (*one.parameters(), *two.parameters()))]
        if hasattr(run, "explain"):
            assert KIND not in [group.kind for group in groups(program_of(run))]
    return found


def launched(bed: Bed) -> None:
    """All kernels that the tests launch."""
    for small in (True, False):
        use(bed, small)
        for frozen in FROZEN.values():
            training = Training(gradcore.compile, frozen)
            for k in range(3):
                training.run(*data(k))
        differentiated(gradcore.compile)


def use(bed: Bed, small: bool) -> None:
    """Let products have a kernel of gradcore's own, as in a library that is made for a GPU, or not."""
    bed.library = gpu_gemm.LIBRARIES[0] = CublasLt(QueuedLt(bed.card, bed.emulator), 4096, lambda nbytes: bed.device._reserve(
        nbytes, "cuBLASLt", "matmul"), small=small)
    # Recorded launches refer to the library that was in use.
    bed.device.calls.clear()


@pytest.fixture(scope="module")
def captured_kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return emulator_of(tmp_path_factory.mktemp("slopes"), launched)


@pytest.fixture
def small(bed: Bed) -> Iterator[Bed]:
    use(bed, True)
    yield bed


@pytest.mark.parametrize("case", FROZEN)
def test_a_training_step_has_the_bits_of_the_eager_one(small: Bed, case: str) -> None:
    eager, captured = Training(frozen=FROZEN[case]), Training(gradcore.compile, FROZEN[case])
    same_steps(eager, captured, data)
    assert [group.kind for group in groups(program_of(captured.run))].count(KIND) == 2
    nodes = list(small.card.nodes.values())[-1]
    assert "small_product" in nodes and not {"map", "product"} & {*nodes}, nodes


def test_what_is_read_once_more_is_written(small: Bed) -> None:
    assert differentiated(gradcore.compile) == differentiated()


def test_a_library_without_it_makes_two_launches(bed: Bed) -> None:
    use(bed, False)
    eager, captured = Training(), Training(gradcore.compile)
    same_steps(eager, captured, data)
    program = program_of(captured.run)
    assert [group.kind for group in groups(program)].count(KIND) == 2
    # relu's two launches of forward are left out, and two of the loss.
    assert f"{len(program.instructions) - 4} kernel calls are captured in one graph" in captured.run.explain()


def test_the_log_is_as_without(captured_kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for fused in (True, False):
        with Bed(captured_kernels).in_place() as bed:
            use(bed, True)
            if not fused:
                monkeypatch.setattr(bed.device, "fused", lambda kind, steps: None)
            # One of each layer's two calls is the product that applies relu's gradient.
            found.append(logged(bed, Training(gradcore.compile), data(3), 4 if fused else 0))
    assert found[0] == found[1]


def test_the_gradient_passes_where_relus_result_is_nan(small: Bed) -> None:
    dy, weight = np.ones((2, 3), np.float32), np.arange(15, dtype=np.float32).reshape(3, 5)
    shown = np.array([[1, 0, np.nan, -0.0, 2], [0, 0, 1, -np.nan, np.inf]], np.float32)
    copies = [Copy(a) for a in (dy, weight, shown)]
    out = Copy(np.full((2, 5), 7, np.float32))
    input_grad_through_relu(*(c.cupy() for c in copies), out.cupy())
    small.card.deviceSynchronize()
    out.check("the gradient")
    np.testing.assert_array_equal(out.array, np.where(shown <= 0, 0, dy @ weight))
    # In relu's place.
    input_grad_through_relu(copies[0].cupy(), copies[1].cupy(), copies[2].cupy(), copies[2].cupy())
    small.card.deviceSynchronize()
    np.testing.assert_array_equal(copies[2].array, out.array)


def test_a_result_in_the_place_of_an_operand_is_made_by_two_launches(small: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    room = Copy(np.zeros(128, np.float32)).cupy()
    dy, weight, x, made, dweight, dbias, apart = (room[k:k + n].reshape(shape) for k, n, shape in (
        (0, 8, (2, 4)), (8, 12, (4, 3)), (20, 6, (2, 3)), (28, 6, (2, 3)), (36, 12, (4, 3)), (48, 4, (4,)), (56, 6, (2, 3))))

    def fused(*, first: Any = dy, shown: Any = x, result: Any = apart) -> Any:
        kernel = partial(linear_grad, needs=(True, True, True))
        steps: list[Any] = [[(kernel, [first, x, weight, made, dweight, dbias])], [(None, [made, shown, result])]]
        return gpu_fused.fused(KIND, steps, lambda kernel, op: (kernel, op))

    for result in (apart, x, made):
        ((before, of_parameters), (kernel, arguments)), nothing = fused(result=result)
        assert before[0].func is linear_grad and before[0].keywords == {"needs": (False, True, True)}
        assert all(a is b for a, b in zip(of_parameters, (dy, x, None, dweight, dbias), strict=True))
        assert kernel == (input_grad_through_relu, "linear_grad") and nothing == []
        assert arguments[0] is dy and arguments[1] is weight and arguments[2] is x and arguments[3] is result
    for refused in ({"result": dy.reshape(-1)[:6].reshape(2, 3)}, {"result": room[12:18].reshape(2, 3)},
                    {"result": room[22:28].reshape(2, 3)}, {"first": None}, {"shown": None}):
        assert fused(**refused) is None, refused
    monkeypatch.setattr(gpu_gemm, "library", lambda: CublasLt(QueuedLt(small.card, small.emulator), 0, lambda nbytes: None))
    assert fused() is None

"""A linear layer and relu in one launch of a replay, without a GPU: which pairs are fused, and which are not."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: pip install -e '.[nodriver]'")

import gradcore
from gradcore import nn
from gradcore.devices.gpu import fused as gpu_fused
from gradcore.devices.gpu import gemm as gpu_gemm
from gradcore.devices.gpu import launch as gpu_launch
from gradcore.devices.gpu.kernels.elementwise import apply, wide
from gradcore.devices.gpu.kernels.linalg import linear, linear_relu
from gradcore.program.planning.fusion import groups
from tests.host.cuda.captured_steps import Stepping, data, logged, nan_stays, program_of, same_function, same_steps
from tests.host.cuda.emulator import Copy, Emulator
from tests.host.cuda.fake_cublas import Epilogue
from tests.host.cuda.graph_bed import Bed, bits, emulator_of
from tests.host.cuda.test_gemm import KINDS, calls_of, library_of

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: the emulator cannot be compiled"),
              pytest.mark.timeout(600), pytest.mark.xdist_group("emulator")]

F = nn.functional


class Training(Stepping):
    """A step of a network whose two hidden layers are followed by relu."""

    def __init__(self, wrap: Any = lambda f: f) -> None:
        gradcore.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        super().__init__(model.to("cuda"), wrap)


def layers() -> tuple[Any, Any, Any]:
    gradcore.manual_seed(4)
    return (*[nn.Linear(6, 8).to("cuda") for _ in range(2)], nn.Linear(6, 8, bias=False).to("cuda"))


#: How many layers of each function are fused with their relu.
JOINED = {"joined": 1, "two": 2, "no bias": 0, "the layer's result is returned": 0, "another op between": 0,
          "read once more": 0, "another shape": 0, "three in a row": 3}


def functions() -> dict[str, Any]:
    """Functions of one input."""
    one, two, bare = layers()
    back = nn.Linear(8, 6).to("cuda")

    def both(x: Any) -> Any:
        z = one(x)
        return z, F.relu(z)

    def between(x: Any) -> Any:
        z, other = one(x), x * 2
        return F.relu(z) + other.sum()

    def again(x: Any) -> Any:
        z = one(x)
        return F.relu(z) * z

    def row(x: Any) -> Any:
        return F.relu(two(F.relu(back(F.relu(one(x)))))) * 2

    found = (lambda x: F.relu(one(x)), lambda x: F.relu(one(x)) + F.relu(two(x)), lambda x: F.relu(bare(x)), both, between,
             again, lambda x: F.relu(one(x).reshape(-1)), row)
    return dict(zip(JOINED, found, strict=True))


def differentiated(wrap: Any = lambda f: f) -> list[bytes]:
    """A function whose caller computes the gradient, three times."""
    one, two, _ = layers()
    f, found = wrap(lambda x: F.relu(one(x)) * F.relu(two(x))), []
    for k in range(3):
        y = f(data(k)[0])
        (y * y).sum().backward()
        found += [bits(t) for t in (y, one.weight.grad, two.bias.grad)]
    if hasattr(f, "explain"):
        found.append(f.explain())
    return found


def launched(bed: Bed) -> None:
    """All kernels that the tests launch."""
    for cublas in (False, True):
        if cublas:
            bed.use_cublas()
        training = Training(gradcore.compile)
        for k in range(3):
            training.run(*data(k))
        differentiated(gradcore.compile)
        with gradcore.no_grad():
            for f in functions().values():
                step = gradcore.compile(f)
                for k in range(2):
                    step(data(k)[0])


@pytest.fixture(scope="module")
def captured_kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return emulator_of(tmp_path_factory.mktemp("relu"), launched)


def found_in(program: Any) -> list[Any]:
    return [group for group in groups(program) if group.kind == "linear with relu"]


@pytest.mark.parametrize("how", ["cublasLt", "makes 0 of NaN", "without relu", "cuBLAS"])
def test_a_training_step_has_the_bits_of_the_eager_one(bed: Bed, how: str) -> None:
    if how == "cuBLAS":
        bed.use_cublas()
    elif how == "makes 0 of NaN":
        bed.library._lt.larger = np.fmax
    elif how == "without relu":
        bed.library._lt.without = {Epilogue.RELU_BIAS}
    eager, captured = Training(), Training(gradcore.compile)
    same_steps(eager, captured, data)
    program = program_of(captured.run)
    assert len(found_in(program)) == 2
    if how == "cuBLAS":
        assert "launched one by one: linear in layer " in captured.run.explain()
    else:
        # relu's two launches are left out, whatever it is that the product's launch does; and two of the loss.
        assert f"{len(program.instructions) - 4} kernel calls are captured in one graph" in captured.run.explain()


@pytest.mark.parametrize("name", JOINED)
def test_only_results_without_other_readers_are_left_out(bed: Bed, name: str) -> None:
    f, count = functions()[name], JOINED[name]
    program, nodes = same_function(bed, f, f, [data(k)[0] for k in range(4)])
    assert len(found_in(program)) == count
    assert nodes.count("product") == sum(i.op == "linear" for i in program.instructions)
    assert len(nodes) == len(program.instructions) - count


def test_a_program_in_two_parts_is_two_graphs(bed: Bed) -> None:
    *found, text = differentiated(gradcore.compile)
    assert found == differentiated()
    assert "3 kernel calls are captured in one graph" in text and "of the second part" in text


def test_a_result_in_the_place_of_an_operand_is_made_by_two_launches() -> None:
    room = Copy(np.zeros(64, np.float32)).cupy()
    x, weight, bias, made, result = (room[k:k + n].reshape(shape) for k, n, shape in (
        (0, 6, (2, 3)), (8, 12, (4, 3)), (20, 4, (4,)), (24, 8, (2, 4)), (32, 8, (2, 4))))
    for first, place, joined in ((x, result, True), (None, result, True), (x, made, True), (x, room[4:12].reshape(2, 4), False),
                                 (x, room[16:24].reshape(2, 4), False)):
        steps: list[Any] = [[(None, [first, weight, bias, made])], [(None, [made, place])]]
        found = gpu_fused.fused("linear with relu", steps, lambda kernel, op: (kernel, op))
        if not joined:
            assert found is None and steps[0][0][1][3] is made
            continue
        ((kernel, arguments),), nothing = found
        assert kernel == (linear_relu, "linear") and nothing == []
        assert arguments is steps[0][0][1] and arguments[3] is place, "a run puts what it brings into the same list"
    assert gpu_fused.fused("a kind of the host", [], lambda kernel, op: kernel) is None


@pytest.mark.parametrize("larger", [np.maximum, np.fmax], ids=["NaN stays", "0 of NaN"])
def test_nan_stays_in_a_captured_step(bed: Bed, larger: Any) -> None:
    bed.library._lt.larger = larger
    nan_stays(functions()["joined"])


def test_the_log_is_as_without(captured_kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Bed(captured_kernels).in_place() as bed:
        ours = logged(bed, Training(gradcore.compile), data(3), 4)
    with Bed(captured_kernels).in_place() as bed:
        monkeypatch.setattr(bed.device, "fused", lambda kind, steps: None)
        assert logged(bed, Training(gradcore.compile), data(3), 0) == ours


# -- what the product's launch does ------------------------------------------------------------------------------------------


def through_relu(kind: Any, apart: bool = False) -> Any:
    """relu of ``linear`` in one call, or in two; a column of it is NaN."""
    generator = np.random.default_rng(7)
    x, w, bias = (generator.normal(size=s).astype(kind) for s in ((6, 5), (4, 5), (4,)))
    bias[2] = np.nan
    copies = [Copy(a) for a in (x, w, bias, np.zeros((6, 4), kind))]
    *given, out = (c.cupy() for c in copies)
    if apart:
        linear(*given, out)
        apply("Relu", wide(out.dtype), out, out)
    else:
        linear_relu(*given, out)
    for copy in copies:
        copy.check("linear_relu")
    return copies[3].array


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An emulator with the kernels that may follow a product."""
    emulator = Emulator(tmp_path_factory.mktemp("alone"))
    emulator.library = library_of("cupy", lambda: False)
    with emulator.in_place():
        for kind in KINDS:
            through_relu(kind)
            through_relu(kind, apart=True)
        emulator.compile()
        yield emulator


#: What cuBLASLt has no algorithm for, its relu's maximum, and the launches of a product's call: epilogues, kernels of ours.
RELUS: dict[str, Any] = {"exact": (set(), np.maximum, [6], []),
         "makes 0 of NaN": (set(), np.fmax, [4], ["Relu"]),
         "without relu": ({Epilogue.RELU_BIAS}, np.maximum, [4], ["Relu"]),
         "without epilogues": ({Epilogue.RELU_BIAS, Epilogue.BIAS}, np.maximum, [1], ["Then<Relu, Add>"]),
         "cuBLAS": (None, np.maximum, [1], ["Then<Relu, Add>"])}


@pytest.mark.parametrize("case", RELUS)
@pytest.mark.parametrize("kind", KINDS)
def test_relu_follows_a_linear_layer_with_the_values_of_two_calls(alone: Emulator, kind: str, case: str,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    without, larger, epilogues, kernels = RELUS[case]
    library = library_of("cupy" if without is None else "cublasLt")
    if without is not None:
        library._lt.without, library._lt.larger = without, larger
    monkeypatch.setattr(alone, "library", library)
    expected = through_relu(kind, apart=True)
    assert np.isnan(expected[:, 2]).all() and (expected[:, [0, 1, 3]] == 0).any()
    calls_of(library).clear()
    launches: list[str] = []
    monkeypatch.setattr(gpu_launch, "launch", lambda *what: (launches.append(what[1]), alone.launch(*what)))
    for _ in range(3):
        np.testing.assert_array_equal(through_relu(kind), expected)
    made = [call.get("epilogue", 1) for call in calls_of(library) if call.get("factor", 1) == 1]
    assert made == 3 * epilogues
    assert len(calls_of(library)) - len(made) == (without == set()), "NaN is tried once a plan"
    if without == set():
        assert {chosen["epilogue"] for chosen in library._lt.algorithms.values()} == {4}, "the layer's algorithm is taken"
    assert [name[len("map<"):].split(", " + gpu_launch.name_of(wide(expected.dtype)))[0] for name in launches] == 3 * kernels


def test_what_was_not_tried_before_a_capture_breaks_it(alone: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "library", library_of("cublasLt"))

    def refused(stream: int) -> None:
        raise RuntimeError("cudaErrorStreamCaptureUnsupported")

    monkeypatch.setattr(gpu_gemm.runtime, "streamSynchronize", refused)
    with pytest.raises(RuntimeError, match="CaptureUnsupported"):
        through_relu("float32")

"""Export to ONNX: every file passes ONNX's checker, and onnxruntime computes the same as gradcore."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcore
from bench.workloads import WORKLOADS
from gradcore import nn
from gradcore.errors import ExportError
from gradcore.ops import all_ops
from tests.conftest import raises
from tests.rows import ROWS, parts, tensors_of

INSTALL = "onnx and onnxruntime are not installed: pip install -e '.[onnx,oracle]'"
MISSING = importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxruntime") is None
pytestmark = pytest.mark.skipif(MISSING, reason=INSTALL)
F = nn.functional
R = np.random.default_rng(0)


def ran(model: Any, example: Any, **options: Any) -> tuple[Any, list[Any]]:
    """The exported file, and onnxruntime's results for the example."""
    import onnx
    import onnxruntime

    proto = gradcore.onnx.export(model, example, None, **options)
    onnx.checker.check_model(proto, full_check=True)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    given = example if isinstance(example, tuple) else (example,)
    # An input that no node reads is still an input of the file.
    feed = {i.name: np.asarray(array_of(a)) for i, a in zip(proto.graph.input, [a for a in given if tensor(a)], strict=True)}
    return proto, session.run(None, feed)


def tensor(a: Any) -> bool:
    return isinstance(a, (gradcore.Tensor, np.ndarray))


def array_of(a: Any) -> Any:
    return a.detach().numpy() if isinstance(a, gradcore.Tensor) else a


def agrees(model: Any, example: Any, tolerance: float = 2e-6, **options: Any) -> Any:
    """Export and run, compare with gradcore's results, and return the file."""
    proto, found = ran(model, example, **options)
    given = tuple(gradcore.tensor(array_of(a)) if tensor(a) else a
                  for a in (example if isinstance(example, tuple) else (example,)))
    with gradcore.no_grad():
        expected = [t.numpy() for t in parts(model(*given))]
    assert len(found) == len(expected)
    for ours, theirs in zip(expected, found, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        if ours.dtype.kind == "f":
            np.testing.assert_allclose(theirs, ours, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(
                ours[np.isfinite(ours)], dtype=np.float64).max(initial=0.0))))
        else:
            np.testing.assert_array_equal(theirs, ours)
    return proto


# -- the models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_model(name: str, tmp_path: Path) -> None:
    import onnx

    workload = WORKLOADS[name]
    model = workload.build(gradcore)
    x, _ = workload.with_batch(2).arrays()
    if name == "cnn":
        # Statistics and scales that are not 0 and 1.
        model(gradcore.tensor(x))
        for p in model.parameters():
            p.data.add_(gradcore.rand(*p.shape) * 0.1)
    proto = agrees(model.eval(), gradcore.tensor(x))
    assert {i.name for i in proto.graph.initializer} >= {n for n, p in model.named_parameters() if p.ndim > 1}
    assert proto.opset_import[0].version >= 17
    gradcore.onnx.export(model, gradcore.tensor(x), tmp_path / "m.onnx")
    assert [n.name for n in onnx.load(tmp_path / "m.onnx").graph.node] == [n.name for n in proto.graph.node]
    layers = {n.name.rsplit("/", 1)[0].replace("/", ".") for n in proto.graph.node}
    assert layers >= {n for n, m in model.named_modules() if type(m).__name__ in ("Linear", "Conv2d", "LayerNorm", "Embedding")}


# -- layers ------------------------------------------------------------------------------------------------------------

IMAGE, ROWS_OF, SEQUENCE = (2, 4, 6, 6), (3, 8), (2, 5, 8)
ACTIVATIONS = ("ReLU GELU Sigmoid Tanh SiLU Mish ELU SELU CELU LeakyReLU Hardtanh ReLU6 Hardswish Hardsigmoid Softplus "
               "Softsign Softshrink Hardshrink Tanhshrink LogSigmoid PReLU").split()
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    **{name: (lambda name=name: getattr(nn, name)(), ROWS_OF) for name in ACTIVATIONS},
    "GELU by tanh": (lambda: nn.GELU(approximate="tanh"), ROWS_OF), "Threshold": (lambda: nn.Threshold(0.1, 20.0), ROWS_OF),
    "Softmax": (lambda: nn.Softmax(dim=1), ROWS_OF), "LogSoftmax": (lambda: nn.LogSoftmax(dim=0), ROWS_OF),
    "Linear": (lambda: nn.Linear(8, 3), ROWS_OF), "Linear on rows of rows": (lambda: nn.Linear(8, 3), SEQUENCE),
    "Linear without bias": (lambda: nn.Linear(8, 3, bias=False), ROWS_OF),
    "Linear on a vector": (lambda: nn.Linear(8, 3), (8,)),
    "Conv1d": (lambda: nn.Conv1d(5, 6, 3, padding=1), (2, 5, 8)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), IMAGE),
    "Conv2d in groups": (lambda: nn.Conv2d(4, 6, (3, 2), dilation=2, groups=2, bias=False), IMAGE),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1), IMAGE),
    "ConvTranspose1d in groups": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=3, dilation=2, groups=2, bias=False), (2, 4, 8)),
    "ZeroPad2d": (lambda: nn.ZeroPad2d((1, 2, 0, 3)), IMAGE), "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), IMAGE),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(8), ROWS_OF), "BatchNorm2d": (lambda: nn.BatchNorm2d(4), IMAGE),
    "BatchNorm2d without scale": (lambda: nn.BatchNorm2d(4, affine=False), IMAGE),
    "LayerNorm": (lambda: nn.LayerNorm(8), SEQUENCE), "LayerNorm over two": (lambda: nn.LayerNorm((5, 8)), SEQUENCE),
    "LayerNorm without scale": (lambda: nn.LayerNorm(8, elementwise_affine=False), SEQUENCE),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), IMAGE), "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "RMSNorm": (lambda: nn.RMSNorm(8), SEQUENCE), "Dropout": (lambda: nn.Dropout(0.5), ROWS_OF),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), IMAGE), "MaxPool2d with padding": (lambda: nn.MaxPool2d(3, 2, padding=1), IMAGE),
    "MaxPool2d rounding up": (lambda: nn.MaxPool2d(4, 3, ceil_mode=True), IMAGE),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), IMAGE),
    "AvgPool2d with padding": (lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), IMAGE),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE),
    "AdaptiveAvgPool2d to parts": (lambda: nn.AdaptiveAvgPool2d((4, 3)), IMAGE), "Flatten": (lambda: nn.Flatten(), IMAGE),
    "MultiheadAttention": (lambda: Attention(), SEQUENCE),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), SEQUENCE),
    "LSTM": (lambda: Recurrent(), SEQUENCE), "GRU": (lambda: nn.GRU(8, 3, bidirectional=True), SEQUENCE),
    "GRU without bias": (lambda: nn.GRU(8, 3, bias=False), SEQUENCE),
    "RNN": (lambda: nn.RNN(8, 3), SEQUENCE), "RNN of relu": (lambda: nn.RNN(8, 3, nonlinearity="relu"), SEQUENCE),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 4)), ROWS_OF),
}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 3, 2, bidirectional=True, batch_first=True)

    def forward(self, x: Any) -> Any:
        out, (h, c) = self.lstm(x)
        return out, h, c


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x)[0]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer(name: str) -> None:
    make, shape = LAYERS[name]
    model = make().eval()
    for p in model.parameters():
        p.data.add_(gradcore.rand(*p.shape) * 0.3)
    agrees(model, gradcore.tensor(R.standard_normal(shape).astype(np.float32)), 5e-6)


def test_statistics_of_half_a_batch_norm_stay_in_float32() -> None:
    # In float16 mean times rstd, 578.2, would be rounded to a multiple of 0.5.
    model = nn.BatchNorm1d(3, affine=False).eval().to(gradcore.float16)
    model.running_mean.fill_(1001.5), model.running_var.fill_(3.0)
    x = gradcore.tensor(np.array([[1000, 1001, 1002.5]], np.float16))
    # onnxruntime would compute all of it in float32 on a CPU.
    from onnx.reference import ReferenceEvaluator

    found, = ReferenceEvaluator(gradcore.onnx.export(model, x, None)).run(None, {"input": x.numpy()})
    np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-3)


# -- every op ----------------------------------------------------------------------------------------------------------

#: Where onnxruntime differs, or results are unspecified, by op: sample calls with one of these words in their name.
OTHERWISE = {**dict.fromkeys(("lstm", "gru", "rnn"), ("no samples", "no steps")),
             "amax": ("nan",), "amin": ("nan",), "ranked": ("special",), "cross_entropy": ("empty",), "empty": ("",),
             "attention": ("dropout",)}
#: Ops that are in the table to raise an error with a reason.
REFUSED = ("dropout", "advance", "uniform", "uniform_", "normal", "normal_", "batch_norm")


def exported(op: str) -> bool:
    from gradcore.onnx.table import CONVERTERS

    declared = all_ops()[op]
    return op not in REFUSED and (op in CONVERTERS or (declared.in_place and op[:-1] in CONVERTERS))


def called(row: Any) -> Any:
    """A sample call as a function of its tensors; of a pooling only the values, since ONNX counts positions differently."""
    return lambda *tensors: parts(row.call(list(tensors)))[:1 if row.op == "max_pool2d" else None]


def words(row: Any) -> tuple[str, ...]:
    return OTHERWISE.get(row.op, ())


@pytest.mark.parametrize("row", [r for r in ROWS if not MISSING and not r.declared.view and exported(r.op)
                                 and not any(w in r.name for w in words(r))], ids=str)
def test_an_op(row: Any) -> None:
    agrees(called(row), tuple(tensors_of(row)), 1e-4)


REST = {r.op: r for r in ROWS if not MISSING and not r.declared.view and not exported(r.op)}


@pytest.mark.parametrize("op", REST)
def test_an_op_without_a_counterpart(op: str) -> None:
    row = REST[op]
    with raises(ExportError, f"{op} in layer (root)", "rows.py:", "cannot be exported to ONNX"):
        gradcore.onnx.export(row.call if not row.operands() else called(row), tuple(tensors_of(row)), None)


# -- what is around the ops --------------------------------------------------------------------------------------------


def test_views_and_writes_in_place() -> None:
    def f(x: Any, y: Any) -> Any:
        a = x.clone()
        a[:, 1:3] = y
        a[0].mul_(2.0)
        b = a.T.reshape(3, 8)[:, ::2]
        a.add_(1.0)
        return a, b, x[1], gradcore.cat([x[:, :1].expand(4, 3), y], dim=1), x.view(2, 12).unfold(1, 3, 2)

    agrees(f, (gradcore.randn(4, 6), gradcore.randn(4, 2)))


def test_bytes_that_are_captured_in_parts() -> None:
    flat = gradcore.randn(12)
    a, b = flat[:6].view(2, 3), flat[6:].view(3, 2)
    proto = agrees(lambda x: x @ a @ b, gradcore.randn(4, 2))
    assert [tuple(i.dims) for i in proto.graph.initializer if tuple(i.dims) == (12,)] == [(12,)]


def test_programs_and_compiled_functions(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
    compiled = gradcore.compile(model)
    x = gradcore.randn(3, 8)
    with raises(gradcore.TraceError, "call it first"):
        gradcore.onnx.export(compiled, None, None)
    compiled(x)
    compiled.save(tmp_path / "program")
    loaded = gradcore.load_program(tmp_path / "program")
    direct, _ = ran(model, x)
    for program in (compiled, loaded):
        proto, found = ran_as(program, x)
        np.testing.assert_allclose(found[0], loaded(x).numpy(), rtol=1e-5, atol=1e-6)
        assert {i.name for i in proto.graph.initializer} == {i.name for i in direct.graph.initializer}


def ran_as(program: Any, x: Any) -> Any:
    import onnxruntime

    proto = gradcore.onnx.export(program, None, None)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return proto, session.run(None, {proto.graph.input[0].name: x.numpy()})


@pytest.mark.parametrize("name", WORKLOADS)
def test_any_size_of_the_batch(name: str) -> None:
    import onnx
    import onnxruntime

    workload = WORKLOADS[name]
    model = workload.build(gradcore).eval()
    x, _ = workload.with_batch(5).arrays()
    proto = gradcore.onnx.export(model, gradcore.tensor(x[:1]), None, dynamic_batch=True)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in (1, 2, 5):
        with gradcore.no_grad():
            expected = model(gradcore.tensor(x[:size])).numpy()
        (found,) = session.run(None, {proto.graph.input[0].name: x[:size]})
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-6)


def test_where_the_batch_cannot_be_left_open() -> None:
    x = gradcore.randn(4, 3)
    agrees(lambda x: x[:, :2].expand(4, 2).reshape(8), x)
    proto = gradcore.onnx.export(lambda x, y: (x[1:] * 2.0).T + y, (x, gradcore.randn(3, 1)), None, dynamic_batch=True)
    assert proto.graph.output[0].type.tensor_type.shape.dim[1].dim_param == "batch_1"
    for function in (lambda x: x * gradcore.arange(x.shape[0]).view(-1, 1), lambda x: x * float(x.shape[0]),
                     lambda x: x[-2:].sum(), lambda x: gradcore.ones(x.shape[0], 2) + x[:, :2]):
        with raises(ExportError, "dynamic_batch", "batch size"):
            gradcore.onnx.export(function, x, None, dynamic_batch=True)
    with raises(ValueError, "a program has a fixed batch size"):
        gradcore.onnx.export(gradcore.compile(lambda x: x * 2.0), x, None, dynamic_batch=True)
    with raises(ValueError, "at least one dimension"):
        gradcore.onnx.export(lambda x: x * 2.0, gradcore.tensor(1.0), None, dynamic_batch=True)


def test_training_mode_is_given_back_and_randomness_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[1].eval()
    gradcore.onnx.export(model, gradcore.randn(3, 8), None)
    assert [m.training for m in model] == [True, False, True] and model.training
    model[2].eval = model[2].train = lambda mode=True: 1 / 0
    with raises(ZeroDivisionError):
        gradcore.onnx.export(model, gradcore.randn(3, 8), None)
    assert [m.training for m in model] == [True, False, True] and model.training
    with raises(ExportError, "advance in layer (root)", "random numbers", "eval()"):
        gradcore.onnx.export(lambda x: F.dropout(x, 0.5), gradcore.randn(3), None)
    with raises(gradcore.TraceError, "returns no tensor"):
        gradcore.onnx.export(lambda x: None, gradcore.randn(3), None)
    with raises(TypeError, "expected a module"):
        gradcore.onnx.export(3, gradcore.randn(3), None)


def test_recurrent_layers_without_samples_are_refused() -> None:
    with raises(gradcore.ExportError, "crashes at a recurrent layer without steps or samples"):
        gradcore.onnx.export(nn.GRU(4, 3), gradcore.zeros(5, 0, 4), None)

"""Names that PyTorch has and gradcore lacks: their errors, the nearest equivalents, and that looking them up is harmless."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gradcore
from gradcore import missing, nn
from gradcore._paths import SOURCES
from gradcore.errors import NotCovered
from gradcore.nearest import NEAREST
from tests.conftest import raises
from tests.host.torch.test_arguments import part_of

NAMES = Path(missing.__file__).with_name("torch_names.txt")
#: torch's internal names: types of its compiler, kernels of other libraries, variants of ops.
INTERNAL = re.compile(
    r"q_.*|sym_.*|(?!index|narrow).*_copy|unsafe_.*|native_.*|(cudnn|miopen|mkldnn|fbgemm|quantized|batch_norm_)_?.+|choose_qparams.*|"
    r"fake_quantize(?!_per_(channel|tensor)_affine$).+|"
    r".*_(indices_copy|quantized)|parse_.*|import_ir.*|merge_type.*|unify_type.*|.*torch_function.*|.*autocast_(inc|dec)rement.*|"
    r"torch|tqdm|typename|types|classes|cpp|package|monitor|overrides|torch_version|version|return_types|windows|"
    r".*_gpu_dtype|.*_(ipu|xla|cpu)_(dtype|enabled)|bits\d.*|.*Storage|.*Type|.*Pipe|runtime_validation.*|functional_datapipe|"
    r"fused_moving.*|profiler_.*|classproperty|get_file_path|prepare_.*|compiled_with.*|(?!untyped).*_storage|thread_safe_generator")
#: A module that PyTorch imports when it first needs it.
LATER = {"nn.modules.linear_cross_entropy"}
#: PyTorch documents these, too.
UNDERSCORED = {"cuda.memory": ("_record_memory_history", "_snapshot", "_dump_snapshot")}
PATHS = ("", "Tensor", "nn", "nn.functional", "nn.init", "nn.utils", "nn.utils.rnn", "optim", "optim.lr_scheduler", "linalg",
         "autograd", "autograd.graph", "autograd.profiler", "cuda", "cuda.nvtx", "amp", "utils", "utils.data", "distributions",
         "distributions.transforms", "distributions.constraints", "func", "special", "accelerator", "compiler", "distributed",
         "hub", "jit", "nn.Module", "nn.utils.parametrizations", "optim.Optimizer",
         "distributions.Distribution", *SOURCES)


def found(path: str, torch: Any) -> list[str]:
    """The public names of a part of torch: its functions, classes, dtypes and modules, and attributes of tensors."""
    # torch.optim deletes the attributes for its modules.
    part = importlib.import_module(f"torch.{path}") if path in SOURCES else part_of(torch, path)
    with warnings.catch_warnings():
        # Of names that are to go.
        warnings.simplefilter("ignore", FutureWarning)
        # Modules that PyTorch does not import itself are parts of it, too.
        beside = [m.name for m in pkgutil.iter_modules(part.__path__)] if path in ("nn.utils", "utils") else []
        return sorted({*_found(path, part, torch), *(name for name in beside if not name.startswith("_"))})


def _found(path: str, part: Any, torch: Any) -> list[str]:
    shown = [name for name in dir(part) if name[:1] != "_" or name in UNDERSCORED.get(path, ())]
    names = sorted(name for name in shown if not INTERNAL.fullmatch(name) and f"{path}.{name}" not in LATER
                   and (path == "Tensor" or _own(getattr(part, name), torch)))
    if path not in SOURCES or path == "nn.modules":
        return names
    # Not what these modules import themselves.
    return [name for name in names if getattr(getattr(part, name), "__module__", "") == f"torch.{path}"]


def _own(value: Any, torch: Any) -> bool:
    if isinstance(value, ModuleType):
        return value.__name__.split(".")[0] == "torch"
    if type(value).__name__ == "pybind11_type":
        return False
    if callable(value):
        return inspect.isbuiltin(value) or str(getattr(value, "__module__", "")).split(".")[0] == "torch"
    return isinstance(value, (torch.dtype, torch.layout, torch.memory_format))


@pytest.mark.oracle
def test_the_names_are_pytorchs(torch: Any) -> None:
    if not torch.__version__.startswith("2.13"):
        pytest.skip(f"the names are those of PyTorch 2.13, this is {torch.__version__}")
    if torch.version.cuda:
        pytest.skip(f"the names are those of PyTorch for the CPU, this is one for CUDA {torch.version.cuda}")
    text = "".join(f"[{'torch.' + path if path else 'torch'}]\n" + textwrap.fill(" ".join(found(path, torch)), 128) + "\n"
                   for path in PATHS)
    text = "PyTorch 2.13's public names: GRADCORE_WRITE_README=1 pytest tests/host/torch/test_missing.py writes them.\n" + text
    if os.environ.get("GRADCORE_WRITE_README") == "1":
        NAMES.write_text(text)
    assert NAMES.read_text() == text, "GRADCORE_WRITE_README=1 pytest tests/host/torch/test_missing.py regenerates it"


def absent(path: str) -> list[str]:
    """PyTorch's names of a part that gradcore lacks."""
    return sorted(name for name in missing.torch_names()[path] if not hasattr(part_of(gradcore, path), name))


def refused(call: Any) -> tuple[type[Exception], str]:
    """The error of a call, without its traceback, which would hold tensors."""
    try:
        call()
    except (AttributeError, ImportError) as error:
        return type(error), str(error)
    raise AssertionError("no error")


@pytest.mark.parametrize("path", PATHS)
def test_a_name_of_pytorchs_is_not_implemented_and_not_there(path: str) -> None:
    part = part_of(gradcore, path)
    of = gradcore.ones(2) if path == "Tensor" else part
    assert len(absent(path)) < len(missing.torch_names()[path])
    for name in absent(path):
        assert not hasattr(of, name) and getattr(of, name, 3) == 3
        kind, text = refused(lambda: getattr(of, name))  # noqa: B023
        assert issubclass(kind, NotCovered) and issubclass(kind, AttributeError) and issubclass(kind, NotImplementedError)
        full = ".".join(x for x in ("torch", path, name) if x)
        assert f"has no attribute {name!r}: {full} is not implemented by gradcore. Nearest: " in text
        for dotted in re.findall(r"gradcore((?:\.\w+)+)", text.partition("Nearest: ")[2]):
            assert part_of(gradcore, dotted.strip(".")) is not None, text


def test_a_name_with_a_nearest_equivalent_is_absent() -> None:
    names = {f"{path}.{name}" for path in PATHS for name in absent(path)}
    names |= {name.rpartition(".")[2] for name in names}
    told = {name for names in NEAREST.values() for name in names.split() if not name.endswith(".*")}
    assert told <= names, sorted(told - names)


@pytest.mark.parametrize(("call", "near"), [
    (lambda: gradcore.lu(gradcore.ones(2, 2)), "gradcore.linalg.solve"),
    (lambda: gradcore.linalg.eig(gradcore.ones(2, 2)), "numpy.linalg on x.detach().numpy()"),
    (lambda: nn.functional.grouped_mm, "gradcore.bmm"),
    (lambda: gradcore.nuclear_norm(gradcore.ones(2, 2)), "gradcore.linalg.matrix_norm(x, 'nuc')"),
    (lambda: gradcore.ones(2).conj(), "real and imaginary parts"),
    (lambda: gradcore.complex64, "real and imaginary parts"),
    (lambda: gradcore.fft.fft, "numpy.fft"),
    (lambda: gradcore.sparse_coo_tensor, "gradcore.zeros"),
    (lambda: gradcore.cuda.seed_all(), "gradcore.manual_seed"),
    (lambda: gradcore.cuda.memory._record_memory_history(), "gradcore.step, whose recording.export(path, 'snapshot')"),
    (lambda: gradcore.fake_quantize_per_tensor_affine(gradcore.ones(2), 0.1, 0, -8, 7),
     "gradcore.autograd.Function, whose backward"),
    (lambda: gradcore.library.custom_op, "gradcore.autograd.Function"),
    (lambda: gradcore.func.functionalize, "gradcore.autograd.grad, with create_graph=True"),
    (lambda: gradcore.distributions.Kumaraswamy(1.0, 1.0), "gradcore.distributions.Beta"),
    (lambda: nn.ReLU().register_backward_hook(print), "gradcore.nn.Module.register_full_backward_hook"),
    (lambda: nn.ReLU().share_memory(), "threads, which share tensors as they are"),
    (lambda: gradcore.ones(2).untyped_storage(), "gradcore.Tensor.data_ptr"),
    (lambda: gradcore.distributions.Normal(0.0, 1.0).sample_n(3), "gradcore.distributions.Distribution.sample"),
    (lambda: gradcore.real, "real and imaginary parts"), (lambda: gradcore.ones(2).real, "real and imaginary parts"),
    (lambda: gradcore.utils.data.datapipes, "gradcore.data.load"),
    (lambda: gradcore.signal, "gradcore.hann_window and the like"), (lambda: gradcore.stft, "numpy.fft"),
    (lambda: gradcore.histogramdd(gradcore.ones(2, 2), 3), "numpy.histogramdd"),
    (lambda: gradcore.segment_reduce, "gradcore.scatter_reduce"),
    (lambda: gradcore.distributed.all_reduce(gradcore.ones(1)), "one process on one device"),
    (lambda: gradcore.compiler.set_stance, "gradcore.compile"),
    (lambda: gradcore.accelerator.device_index(0), "gradcore.cuda")])
def test_the_nearest_thing_is_named(call: Any, near: str) -> None:
    kind, text = refused(call)
    assert issubclass(kind, NotImplementedError) and near in text


@pytest.mark.parametrize(("line", "near"), [
    ("import gradcore.fx as fx", "gradcore.compile"),
    ("import gradcore.distributed.rpc", "one process on one device"),
    ("from gradcore.nested import nested_tensor", "dense tensors")])
def test_the_import_of_a_module_of_pytorchs_names_the_nearest_thing(line: str, near: str) -> None:
    kind, text = refused(lambda: exec(line))
    assert issubclass(kind, ModuleNotFoundError) and issubclass(kind, NotImplementedError)
    assert text.endswith(f" is not implemented by gradcore. Nearest: {near}") or f"Nearest: {near}: " in text
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'gradcore\.nothing'$"):
        exec("import gradcore.nothing")


def test_parts_are_imported_from_where_pytorch_has_them() -> None:
    space: dict[str, Any] = {}
    exec("from gradcore.linalg import norm\nfrom gradcore.optim.lr_scheduler import _LRScheduler", space)
    assert space["norm"] is gradcore.linalg.norm and space["_LRScheduler"] is gradcore.optim.lr_scheduler.LRScheduler


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:at..nuclear_norm is deprecated:UserWarning")
def test_the_formula_for_the_nuclear_norm_gives_what_pytorch_gives(torch: Any) -> None:
    x = [[2.0, 1.0], [1.0, 3.0]]
    found = gradcore.linalg.matrix_norm(gradcore.tensor(x), "nuc")
    np.testing.assert_allclose(found.item(), torch.nuclear_norm(torch.tensor(x)).item(), rtol=1e-5)


def test_an_unknown_name_is_only_an_attribute_error() -> None:
    for call, text in ((lambda: gradcore.tensr, "module 'gradcore' has no attribute 'tensr'. Did you mean: 'tensor'?"),
                       (lambda: nn.Liner, "module 'gradcore.nn' has no attribute 'Liner'. Did you mean: 'Linear'?"),
                       (lambda: gradcore.linalg.slv, "module 'gradcore.linalg' has no attribute 'slv'. Did you mean: 'solve'?"),
                       (lambda: gradcore.qqqqqq, "module 'gradcore' has no attribute 'qqqqqq'"),
                       (lambda: gradcore.__wrapped__, "module 'gradcore' has no attribute '__wrapped__'"),
                       (lambda: gradcore.ones(2).summ, "'Tensor' object has no attribute 'summ'")):
        assert refused(call) == (AttributeError, text)


def test_a_traceback_has_the_hint_once() -> None:
    run = subprocess.run([sys.executable, "-c", "import gradcore; gradcore.tensr"], capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.count("Did you mean: 'tensor'?") == 1


def test_imports_say_it_too() -> None:
    for code in ("from gradcore import lu", "from gradcore import zeros, lu, ones",
                 "from gradcore.nn import Container",
                 "from gradcore.nn.functional import grouped_mm as f"):
        kind, text = refused(lambda: exec(code, {}))  # noqa: B023
        assert issubclass(kind, ImportError) and issubclass(kind, NotImplementedError)
        assert "is not implemented by gradcore. Nearest: gradcore." in text
    kind, text = refused(lambda: exec("from gradcore import qqqqqq", {}))
    assert kind is ImportError and "cannot import name 'qqqqqq'" in text
    assert issubclass(refused(lambda: exec("import gradcore.fft", {}))[0], ModuleNotFoundError)
    exec("from gradcore.nn import *\nfrom gradcore import *\nfrom gradcore import bfloat16, linalg", {})


def test_what_looks_at_a_tensor_finds_what_it_found_before() -> None:
    x = gradcore.ones(2)
    assert not any("__getattr__" in vars(c) or "__getattribute__" in vars(c) for c in gradcore.Tensor.__mro__[:-1])
    with raises(AttributeError, "Can't get __cuda_array_interface__ on a tensor on cpu"):
        _ = x.__cuda_array_interface__
    assert np.asarray(x).tolist() == copy.deepcopy(x).tolist() == [1, 1]
    try:
        x.conj()
    except NotCovered as error:
        assert error.obj is None, "an error that is kept keeps no memory"
    assert "lu" not in dir(x) and "sum" in dir(x) and not hasattr(gradcore.Tensor, "lu")
    assert not hasattr(gradcore.Tensor, "__array_interface__") and not inspect.isabstract(gradcore.Tensor)

    class Mine(gradcore.Tensor):
        def conj(self) -> str:
            return "mine"

    assert Mine(x).conj() == "mine"


def test_each_entry_is_of_a_name_that_pytorch_has() -> None:
    known = {f"{path}.{name}" for path, names in missing.torch_names().items() for name in names}
    known |= {name.rpartition(".")[2] for name in known}
    known |= {f"{path}.*" for path in PATHS}
    told = [name for names in NEAREST.values() for name in names.split()]
    assert sorted(set(told) - known) == [] and len(told) == len(set(told))

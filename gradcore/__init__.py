"""gradcore: GPU-backed autograd with exact device-memory accounting.

    with gradcore.step(batch_size=64) as step:
        ...  # a training step
    print(step.report)  # what holds its memory at the peak, and which lines of source made it

Names follow PyTorch; ``step``, ``StepReport`` and the functions of memory figures that PyTorch lacks are gradcore's own.
"""

# First: it answers an interrupt of what follows.
from gradcore import _command

import math as _math
import sys as _sys
from typing import Any as _Any

import numpy as _np

from gradcore import arguments as _arguments
from gradcore import missing as _missing
from gradcore import _paths

# Devices register themselves when their module is imported.
from gradcore.devices import availability as _availability
from gradcore.devices.host import device as _host
from gradcore.devices import meta as _meta
from gradcore.devices import pinned as _pinned
from gradcore.devices.device import Device, get_default_device, set_default_device
from gradcore.devices.naming import device
from gradcore import _classes
from gradcore._classes import Size, set_default_tensor_type
from gradcore._tensor import Tensor
from gradcore.functional import (
    arange, as_strided, as_tensor, asarray, broadcast_tensors, broadcast_to, cat, cdist, chunk, clone, empty, empty_like, eye,
    flatten, from_numpy, full, full_like, get_default_dtype, index_select, linspace, logspace, narrow, ones, ones_like, permute,
    range, reshape, scalar_tensor, select, set_default_dtype, split, squeeze, stack, t, take_along_dim, tensor, transpose,
    unbind, unflatten, unsqueeze, zeros, zeros_like)
from gradcore.functional.arranging import *
from gradcore.functional.composed import *
from gradcore.functional.counting import *
from gradcore.functional.estimates import *
from gradcore.functional.folding import *
from gradcore.functional.mathematics import *
from gradcore.functional.matrices import *
from gradcore.functional.picking import *
from gradcore.functional.pointwise import *
from gradcore.functional.products import *
from gradcore.functional.reducing import *
from gradcore.functional.running import *
from gradcore.functional.searching import *
from gradcore.functional.windows import *
from gradcore.functional.einsum import einsum
from gradcore.functional.activation import celu, hardshrink, prelu, selu, softmin, threshold
from gradcore.functional.types import *
from gradcore.functional.interop import from_dlpack, frombuffer
from gradcore._random import (
    Generator, default_generator, fork_rng, get_rng_state, initial_seed, manual_seed, normal_, rand, rand_like, randn,
    randn_like, randperm, seed, set_rng_state, uniform_)
from gradcore._distributions import (
    bernoulli, binomial, multinomial, normal, poisson, randint, randint_like, standard_gamma as _standard_gamma)
from gradcore._memory import (
    empty_cache, max_memory_allocated, max_memory_requested, max_memory_reserved, memory_allocated, memory_requested,
    memory_reserved, memory_stats, memory_summary, reset_peak_memory_stats, set_memory_limit)
from gradcore._step import step
from gradcore.engine.modes import (
    enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad, recompute, set_grad_enabled)
from gradcore.errors import (
    AlreadyReleased, DataDependentShape, DeviceError, ExportError, GradcoreError, LinAlgError, ModifiedInPlace,
    NoSecondDerivative, NotCovered, OutOfMemory, ProgramError, SpecError, TraceError)
from gradcore.errors import OutOfMemory as OutOfMemoryError
from gradcore.report.step import StepReport
from gradcore.dtypes import bfloat16 as _bfloat16
from gradcore.functional import linalg, special
from gradcore.functional.linalg import cholesky, cholesky_inverse, cholesky_solve, det, inv, slogdet
from gradcore.functional.linalg import inv as inverse, logdet, matrix_exp, matrix_power
from gradcore.functional.factors import _older_qr as qr, _older_svd as svd, pinverse
from gradcore.devices.precision import get_float32_matmul_precision, set_float32_matmul_precision
from gradcore import (
    accelerator, amp, autograd, backends, compiler, cuda, data, distributed, distributions, func, hub, jit, memory,
    multiprocessing, nn, onnx, optim, program, testing, utils, version)
from gradcore._format import set_printoptions
from gradcore._settings import (
    are_deterministic_algorithms_enabled, get_num_threads, is_deterministic_algorithms_warn_only_enabled, set_num_threads,
    use_deterministic_algorithms)
from gradcore.amp import GradScaler, autocast, get_autocast_dtype, is_autocast_enabled
from gradcore.autograd import functional as _derivatives
from gradcore.autograd.anomaly import is_anomaly_check_nan_enabled, is_anomaly_enabled
from gradcore.autograd.inspection import graph
from gradcore.func import vmap
from gradcore.nn.functional import (
    adaptive_avg_pool1d, avg_pool1d, bilinear, celu_, channel_shuffle, conv1d, conv2d, conv3d, conv_transpose1d,
    conv_transpose2d, cosine_similarity, group_norm, layer_norm, pairwise_distance, pixel_shuffle, pixel_unshuffle, rrelu_,
    selu_, threshold_)
from gradcore.nn import _VF as _VF
from gradcore.nn.flat import *
from gradcore.program import compile, gradients, load_program, record, trace
from gradcore.utils.files import load, save

float16, float32, float64 = _np.dtype(_np.float16), _np.dtype(_np.float32), _np.dtype(_np.float64)
int8, int16, int32, int64 = (_np.dtype(kind) for kind in (_np.int8, _np.int16, _np.int32, _np.int64))
uint8, uint16, uint32, uint64 = (_np.dtype(kind) for kind in (_np.uint8, _np.uint16, _np.uint32, _np.uint64))
#: The type of dtypes, for annotations and ``isinstance``.
dtype = _np.dtype
inf, nan, pi, e, newaxis = _math.inf, _math.nan, _math.pi, _math.e, None
#: Names of layouts and memory formats, which are accepted and change nothing.
strided, contiguous_format, preserve_format = "strided", "contiguous_format", "preserve_format"
channels_last, channels_last_3d = "channels_last", "channels_last_3d"
half, float, double, short, int, long = float16, float32, float64, int16, int32, int64
bool = _np.dtype(_np.bool_)


def __getattr__(name: str) -> _Any:
    # Looked up when used, since NumPy needs the package ml_dtypes for it.
    return _bfloat16() if name == "bfloat16" else _absent(name, 2)


globals().update(_classes.CLASSES["cpu"])
vars(cuda).update(_classes.CLASSES["cuda"])

# Modules in PyTorch, so ``from gradcore.linalg import ...`` must work.
_sys.modules[f"{__name__}.linalg"], _sys.modules[f"{__name__}.special"] = linalg, special
_absent = _missing.lookup(__name__, "")
for _path in ("Tensor", "nn.Module", "optim.Optimizer", "distributions.Distribution"):
    _missing.mark(_missing.at(_path), _path)
for _path in """nn nn.functional nn.init nn.utils nn.utils.rnn nn.utils.parametrizations optim optim.lr_scheduler linalg special
        autograd autograd.graph autograd.profiler cuda cuda.nvtx amp utils utils.data distributions distributions.transforms
        distributions.constraints func accelerator compiler distributed jit hub""".split():
    _missing.watch(_missing.at(_path), _path)
    _missing.show(_missing.at(_path), _path)

_paths.install()
_sys.meta_path.append(_missing.Finder())

# PyTorch has the tensor methods that work in place as functions too.
for _name in _missing.torch_names()[""]:
    if (_name.endswith("_") or _name == "detach") and _name not in globals() and hasattr(Tensor, _name):
        globals()[_name] = getattr(Tensor, _name)
for _path in ("", "nn.functional", "nn.init", "linalg", "special"):
    _arguments.accept(vars(_missing.at(_path)), _path, _missing.torch_names()[_path])

for _module, _kind in ((nn, nn.Module), (optim.lr_scheduler, optim.lr_scheduler.LRScheduler),
                       (distributions, distributions.Distribution),
                       (distributions.constraints, distributions.constraints.Constraint),
                       (nn.utils.prune, nn.utils.prune.BasePruningMethod)):
    _arguments.own_constructors(vars(_module), _kind)

memory.use_for_cupy = cuda.use_for_cupy  # type: ignore[attr-defined]

__version__ = "0.1.0"

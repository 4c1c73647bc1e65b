"""PyTorch's modules whose names are elsewhere here: ``gradcore.nn.modules.batchnorm``, ``gradcore.optim.adamw`` and others."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from gradcore import missing
from gradcore.nn import tuples as _tuples  # noqa: F401 - one of the sources

_LAYERS = """activation batchnorm channelshuffle container conv distance dropout flatten fold instancenorm lazy linear loss
    module normalization padding pixelshuffle pooling rnn sparse transformer upsampling""".split()
_DISTRIBUTIONS = """bernoulli beta binomial categorical cauchy chi2 dirichlet exponential fishersnedecor gamma geometric gumbel
    half_cauchy half_normal independent inverse_gamma laplace log_normal logistic_normal mixture_same_family multinomial
    multivariate_normal negative_binomial normal one_hot_categorical pareto poisson relaxed_bernoulli relaxed_categorical
    studentT transformed_distribution uniform weibull""".split()
_OPTIMIZERS = "adadelta adagrad adamax adamw asgd nadam radam rmsprop rprop".split()

#: By path: where its names are.
SOURCES: dict[str, str] = {
    "nn.modules": "nn", **{f"nn.modules.{part}": "nn" for part in _LAYERS}, "nn.modules.utils": "nn.tuples",
    **{f"distributions.{part}": "distributions" for part in _DISTRIBUTIONS},
    **{f"optim.{part}": "optim" for part in _OPTIMIZERS},
    "utils.data.dataloader": "utils.data", "nn.utils.clip_grad": "nn.utils", "nn.utils.convert_parameters": "nn.utils",
    "autograd.grad_mode": "autograd", "autograd.variable": "autograd", "cuda.memory": "cuda", "cuda.random": "cuda",
    "random": ""}
#: By path: modules here, each before names that PyTorch has there without counting them as its own or as public, and that code
#: written for it uses.
BESIDE: dict[str, tuple[str, ...]] = {
    "nn.modules.batchnorm": ("nn.norm", "_NormBase _BatchNorm"), "nn.modules.instancenorm": ("nn.norm", "_InstanceNorm"),
    "nn.modules.conv": ("nn.convolution", "_ConvNd _ConvTransposeNd"),
    "nn.modules.linear": ("nn.linear", "NonDynamicallyQuantizableLinear"),
    "nn.modules.normalization": ("nn.norm", "_shape_t"),
    "nn.modules.padding": ("nn.padding", "_ConstantPadNd _ReflectionPadNd _ReplicationPadNd _CircularPadNd"),
    "nn.modules.transformer": ("nn.transformer", "_generate_square_subsequent_mask _get_activation_fn _get_clones "
                               "_get_seq_len _detect_is_causal_mask"),
    "nn.modules.dropout": ("nn.dropout", "_DropoutNd"),
    "nn.modules.lazy": ("nn.lazy", "LazyModuleMixin"), "nn.modules.loss": ("nn.loss", "_Loss _WeightedLoss"),
    "nn.modules.module": ("nn.hooks", "register_module_forward_pre_hook register_module_forward_hook "
                          "register_module_full_backward_pre_hook register_module_full_backward_hook",
                          "nn._state_dict", "_EXTRA_STATE_KEY_SUFFIX _IncompatibleKeys"),
    "nn.modules.rnn": ("nn.recurrent", "RNNBase apply_permutation", "nn.recurrent_cells", "RNNCellBase"),
    "nn.modules.pooling": ("nn.pooling", "_MaxPoolNd _AvgPoolNd _LPPoolNd _AdaptiveAvgPoolNd _AdaptiveMaxPoolNd"),
    "utils.data.dataloader": ("utils.data", "default_collate get_worker_info"),
    "nn.modules.utils": ("nn.tuples", "_ntuple _single _pair _triple _quadruple _reverse_repeat_tuple")}


def install() -> None:
    """Make the modules. Each has those of PyTorch's names that are here, and tells of the others what is nearest."""
    for path, source in SOURCES.items():
        module = ModuleType(f"gradcore.{path}", f"The names of PyTorch's torch.{path} that gradcore has.")
        known = missing.torch_names().get(path, frozenset())
        vars(module).update((name, value) for name, value in vars(_at(source)).items() if name in known)
        beside = BESIDE.get(path, ())
        for source, names in zip(beside[::2], beside[1::2], strict=True):
            vars(module).update((name, getattr(_at(source), name)) for name in names.split())
        missing.watch(module, path)
        sys.modules[module.__name__] = module
        above, _, name = path.rpartition(".")
        setattr(_at(above), name, module)


def _at(path: str) -> Any:
    return sys.modules[f"gradcore.{path}" if path else "gradcore"]

"""Modules: the base class, layers, losses and containers, with the names of ``torch.nn``."""

from gradcore.nn import (
    _reduction,
    activation,
    common_types,
    convolution,
    dropout,
    functional,
    init,
    lazy,
    linear,
    linear_loss,
    loss,
    norm,
    padding,
    parallel,
    pooling,
    recurrent,
    recurrent_cells,
    sampling,
    transformer,
    unpooling,
    utils,
)
from gradcore.nn.activation import *  # noqa: F403 - what its __all__ names
from gradcore.nn.adaptive import AdaptiveLogSoftmaxWithLoss
from gradcore.nn.attention import MultiheadAttention
from gradcore.nn.container import ModuleDict, ModuleList, Sequential
from gradcore.nn.convolution import *  # noqa: F403
from gradcore.nn.cross_map import CrossMapLRN2d
from gradcore.nn.dropout import *  # noqa: F403
from gradcore.nn.embeddings import Embedding, EmbeddingBag
from gradcore.nn.lazy import *  # noqa: F403
from gradcore.nn.linear import *  # noqa: F403
from gradcore.nn.linear_loss import *  # noqa: F403
from gradcore.nn.loss import *  # noqa: F403
from gradcore.nn.module import Module
from gradcore.nn.norm import *  # noqa: F403
from gradcore.nn.one_device import DataParallel, SyncBatchNorm
from gradcore.nn.padding import *  # noqa: F403
from gradcore.nn.parameter import Buffer, Parameter, UninitializedParameter
from gradcore.nn.parameters import ParameterDict, ParameterList
from gradcore.nn.pooling import *  # noqa: F403
from gradcore.nn.recurrent import *  # noqa: F403
from gradcore.nn.recurrent_cells import *  # noqa: F403
from gradcore.nn.sampling import *  # noqa: F403
from gradcore.nn.transformer import *  # noqa: F403
from gradcore.nn.unpooling import *  # noqa: F403

__all__ = ["AdaptiveLogSoftmaxWithLoss", "Buffer", "CrossMapLRN2d", "DataParallel", "Embedding", "EmbeddingBag", "Module",
           "ModuleDict", "ModuleList", "MultiheadAttention", "Parameter", "ParameterDict", "ParameterList", "Sequential",
           "SyncBatchNorm", "UninitializedParameter", "_reduction", "common_types", "functional", "init", "parallel", "utils"]
__all__ += activation.__all__ + convolution.__all__ + dropout.__all__ + lazy.__all__ + linear.__all__ + linear_loss.__all__
__all__ += loss.__all__ + norm.__all__ + padding.__all__ + pooling.__all__ + recurrent.__all__ + sampling.__all__
__all__ += recurrent_cells.__all__ + transformer.__all__ + unpooling.__all__

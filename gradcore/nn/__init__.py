"""Modules: the base class, layers, losses and containers, with the names of ``torch.nn``."""

from gradcore.nn import activation, functional, init, lazy, parallel, pooling, unpooling, utils
from gradcore.nn.activation import *  # noqa: F403 - what its __all__ names
from gradcore.nn.adaptive import AdaptiveLogSoftmaxWithLoss
from gradcore.nn.attention import MultiheadAttention
from gradcore.nn.container import ModuleDict, ModuleList, Sequential
from gradcore.nn.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from gradcore.nn.cross_map import CrossMapLRN2d
from gradcore.nn.dropout import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout
from gradcore.nn.embeddings import Embedding, EmbeddingBag
from gradcore.nn.lazy import *  # noqa: F403
from gradcore.nn.linear import Bilinear, Flatten, Identity, Linear
from gradcore.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CosineSimilarity,
    CrossEntropyLoss,
    CTCLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MarginRankingLoss,
    MSELoss,
    MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    NLLLoss,
    NLLLoss2d,
    PairwiseDistance,
    PoissonNLLLoss,
    SmoothL1Loss,
    SoftMarginLoss,
    TripletMarginLoss,
    TripletMarginWithDistanceLoss,
)
from gradcore.nn.module import Module
from gradcore.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
)
from gradcore.nn.one_device import DataParallel, SyncBatchNorm
from gradcore.nn.padding import (
    CircularPad1d,
    CircularPad2d,
    CircularPad3d,
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    ZeroPad1d,
    ZeroPad2d,
    ZeroPad3d,
)
from gradcore.nn.parameter import Buffer, Parameter, UninitializedParameter
from gradcore.nn.parameters import ParameterDict, ParameterList
from gradcore.nn.pooling import *  # noqa: F403
from gradcore.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNBase, RNNCell, RNNCellBase
from gradcore.nn.sampling import (
    ChannelShuffle,
    Fold,
    PixelShuffle,
    PixelUnshuffle,
    Unflatten,
    Unfold,
    Upsample,
    UpsamplingBilinear2d,
    UpsamplingNearest2d,
)
from gradcore.nn.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from gradcore.nn.unpooling import *  # noqa: F403

__all__ = ["GRU", "LSTM", "RNN", "AdaptiveLogSoftmaxWithLoss", "AlphaDropout", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d",
           "BatchNorm2d", "BatchNorm3d", "Bilinear", "Buffer", "CTCLoss", "ChannelShuffle", "CircularPad1d", "CircularPad2d",
           "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d",
           "ConvTranspose2d", "ConvTranspose3d", "CosineEmbeddingLoss", "CosineSimilarity", "CrossEntropyLoss", "CrossMapLRN2d",
           "DataParallel", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "Embedding", "EmbeddingBag", "FeatureAlphaDropout",
           "Flatten", "Fold", "GRUCell", "GaussianNLLLoss", "GroupNorm", "HingeEmbeddingLoss", "HuberLoss", "Identity",
           "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "KLDivLoss", "L1Loss", "LSTMCell", "LayerNorm", "Linear",
           "LocalResponseNorm", "MSELoss", "MarginRankingLoss", "Module", "ModuleDict", "ModuleList", "MultiLabelMarginLoss",
           "MultiLabelSoftMarginLoss", "MultiMarginLoss", "MultiheadAttention", "NLLLoss", "NLLLoss2d", "PairwiseDistance",
           "Parameter", "ParameterDict", "ParameterList", "PixelShuffle", "PixelUnshuffle", "PoissonNLLLoss", "RMSNorm",
           "RNNBase", "RNNCell", "RNNCellBase", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d",
           "ReplicationPad2d", "ReplicationPad3d", "Sequential", "SmoothL1Loss", "SoftMarginLoss", "SyncBatchNorm",
           "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
           "TripletMarginLoss", "TripletMarginWithDistanceLoss", "Unflatten", "Unfold", "Upsample", "UpsamplingBilinear2d",
           "UpsamplingNearest2d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d", "functional", "init", "parallel", "utils"]
__all__ += activation.__all__ + pooling.__all__ + unpooling.__all__ + lazy.__all__ + ["UninitializedParameter"]

"""Modules: the base class, layers, losses and containers, with the names of ``torch.nn``."""

from gradcore.nn import activations, functional, init, pooling, utils
from gradcore.nn.activation import GELU, LogSoftmax, ReLU, Sigmoid, Softmax, Tanh
from gradcore.nn.activations import *  # noqa: F403 - what its __all__ names
from gradcore.nn.attention import Embedding, MultiheadAttention
from gradcore.nn.bags import Bilinear, EmbeddingBag
from gradcore.nn.container import ModuleDict, ModuleList, Sequential
from gradcore.nn.dropout import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d
from gradcore.nn.images import AdaptiveAvgPool2d, AvgPool2d, Conv2d, MaxPool2d
from gradcore.nn.linear import Flatten, Identity, Linear
from gradcore.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CosineSimilarity,
    CrossEntropyLoss,
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
    RMSNorm,
)
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
from gradcore.nn.parameter import Buffer, Parameter
from gradcore.nn.parameters import ParameterDict, ParameterList
from gradcore.nn.pooling import *  # noqa: F403
from gradcore.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from gradcore.nn.sampling import (
    AdaptiveAvgPool1d,
    AvgPool1d,
    ChannelShuffle,
    Conv1d,
    ConvTranspose1d,
    ConvTranspose2d,
    Fold,
    MaxPool1d,
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
from gradcore.nn.volumes import AdaptiveMaxPool1d, AdaptiveMaxPool2d, Conv3d, ConvTranspose3d

__all__ = ["GELU", "AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "Conv2d", "CrossEntropyLoss",
           "Dropout", "Embedding", "Flatten", "Identity", "LayerNorm", "Linear", "LogSoftmax", "MSELoss", "MaxPool2d",
           "Module", "ModuleDict", "ModuleList", "MultiheadAttention", "NLLLoss", "Parameter", "ReLU", "Sequential",
           "Sigmoid", "Softmax", "Tanh", "functional", "init"]
__all__ += ["BCELoss", "BCEWithLogitsLoss", "CosineEmbeddingLoss", "CosineSimilarity", "GaussianNLLLoss",
            "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MarginRankingLoss", "MultiLabelMarginLoss",
            "MultiLabelSoftMarginLoss", "MultiMarginLoss",
            "PairwiseDistance", "PoissonNLLLoss", "SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss",
            "TripletMarginWithDistanceLoss"]
__all__ += ["AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "BatchNorm3d", "Conv3d", "InstanceNorm3d"]
__all__ += ["GRU", "LSTM", "RNN", "AdaptiveAvgPool1d", "AlphaDropout", "AvgPool1d", "Bilinear", "ChannelShuffle",
            "CircularPad1d", "CircularPad2d", "ConstantPad1d", "ConstantPad2d", "Conv1d", "ConvTranspose1d",
            "ConvTranspose2d", "Dropout1d", "Dropout2d", "Dropout3d", "EmbeddingBag", "Fold", "GRUCell", "GroupNorm",
            "InstanceNorm1d", "InstanceNorm2d", "LSTMCell", "MaxPool1d", "ParameterDict", "ParameterList",
            "PixelShuffle", "PixelUnshuffle", "RMSNorm", "RNNCell", "ReflectionPad1d", "ReflectionPad2d",
            "ReplicationPad1d", "ReplicationPad2d", "Transformer", "TransformerDecoder", "TransformerDecoderLayer",
            "TransformerEncoder", "TransformerEncoderLayer", "Unflatten", "Unfold", "Upsample", "UpsamplingBilinear2d",
            "UpsamplingNearest2d", "ZeroPad1d", "ZeroPad2d", "utils"]
__all__ += ["Buffer", "CircularPad3d", "ConstantPad3d", "ConvTranspose3d", "ReflectionPad3d", "ReplicationPad3d", "ZeroPad3d"]
__all__ += activations.__all__ + pooling.__all__

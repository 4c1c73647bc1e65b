"""``gradcore.nn.utils``: gradient clipping, parametrizations, pruning, packed sequences."""

from gradcore.nn.utils import parametrizations, parametrize, prune, rnn
from gradcore.nn.utils.clipping import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from gradcore.nn.utils.fusion import fuse_conv_bn_eval, fuse_conv_bn_weights, fuse_linear_bn_eval, fuse_linear_bn_weights
from gradcore.nn.utils.skipping import skip_init
from gradcore.nn.utils.spectral_norm import remove_spectral_norm, spectral_norm
from gradcore.nn.utils.vectors import parameters_to_vector, vector_to_parameters
from gradcore.nn.utils.weight_norm import remove_weight_norm, weight_norm

__all__ = ["clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "fuse_conv_bn_eval",
           "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights", "get_total_norm", "parameters_to_vector",
           "parametrizations", "parametrize", "prune",
           "remove_spectral_norm", "remove_weight_norm", "rnn", "skip_init", "spectral_norm", "vector_to_parameters",
           "weight_norm"]

"""The code that gives a module other parts: what a replay would not do."""

from __future__ import annotations

from gradcore.nn.module import Module
from gradcore.nn.utils.prune import BasePruningMethod
from gradcore.nn.utils.spectral_norm import SpectralNorm
from gradcore.nn.utils.weight_norm import WeightNorm

#: What gives a module a parameter, buffer or child, in the place of another, say, or takes it away.
EXCHANGES = (Module._module_put.__code__, Module.__delattr__.__code__)
#: Hooks that store the weight which they compute before each call of a layer.
STORES_WEIGHT = {WeightNorm.__call__.__code__: "weight_norm", SpectralNorm.__call__.__code__: "spectral_norm",
                 BasePruningMethod.__call__.__code__: "prune"}

"""Functions on tensors with PyTorch's signatures, which call ops with normalised arguments."""

from gradcore.functional import (
    activation,
    arranging,
    composed,
    counting,
    creation,
    diagonals,
    estimates,
    folding,
    gathering,
    linalg,
    mathematics,
    picking,
    pointwise,
    products,
    reshaped,
    running,
    searching,
    shape,
)
from gradcore.functional import types as _types
from gradcore.functional.activation import *  # noqa: F403 - what its __all__ names
from gradcore.functional.arranging import *  # noqa: F403
from gradcore.functional.composed import *  # noqa: F403
from gradcore.functional.counting import *  # noqa: F403
from gradcore.functional.creation import *  # noqa: F403
from gradcore.functional.diagonals import *  # noqa: F403
from gradcore.functional.distances import cdist
from gradcore.functional.einsum import einsum
from gradcore.functional.estimates import *  # noqa: F403
from gradcore.functional.folding import *  # noqa: F403
from gradcore.functional.gathering import *  # noqa: F403
from gradcore.functional.mathematics import *  # noqa: F403
from gradcore.functional.picking import *  # noqa: F403
from gradcore.functional.pointwise import *  # noqa: F403
from gradcore.functional.products import *  # noqa: F403
from gradcore.functional.running import *  # noqa: F403
from gradcore.functional.searching import *  # noqa: F403
from gradcore.functional.shape import *  # noqa: F403

#: Functions that are also methods of a tensor.
METHODS = [
    *mathematics.METHODS, *shape.METHODS, *pointwise.METHODS, *activation.METHODS, *arranging.METHODS, *composed.METHODS,
    *counting.METHODS, *diagonals.METHODS, *estimates.METHODS, *folding.METHODS, *gathering.METHODS, *picking.METHODS,
    *products.METHODS, *running.METHODS, *searching.METHODS]
#: Methods of a tensor that are not functions: in-place forms, and those with another order of arguments.
TENSOR_METHODS = {**pointwise.TENSOR_METHODS, **picking.TENSOR_METHODS, **arranging.TENSOR_METHODS, **diagonals.TENSOR_METHODS,
                  **composed.TENSOR_METHODS, **gathering.TENSOR_METHODS, **linalg.TENSOR_METHODS, **folding.TENSOR_METHODS,
                  **products.TENSOR_METHODS, **reshaped.TENSOR_METHODS,
                  **{fn.__name__: fn for fn in (_types.is_complex, _types.is_inference, _types.is_nonzero, _types.is_same_size,
                                                _types.is_signed)}}

__all__ = [  # noqa: PLE0604 - strings all
    *activation.__all__, *arranging.__all__, *composed.__all__, *counting.__all__, *creation.__all__, *diagonals.__all__,
    *estimates.__all__, *folding.__all__, *gathering.__all__, *mathematics.__all__, *picking.__all__, *pointwise.__all__,
    *products.__all__, *running.__all__, *searching.__all__, *shape.__all__, "METHODS", "TENSOR_METHODS", "cdist", "einsum",
    "linalg"]

"""Functions on tensors with PyTorch's signatures, which call ops with normalized arguments."""

from gradcore.functional import (
    activation,
    arranging,
    composed,
    counting,
    creation,
    estimates,
    folding,
    linalg,
    mathematics,
    matrices,
    picking,
    pointwise,
    products,
    reducing,
    reshaped,
    running,
    searching,
    shape,
    types,
    windows,
)
from gradcore.functional.activation import *  # noqa: F403 - what its __all__ names
from gradcore.functional.arranging import *  # noqa: F403
from gradcore.functional.composed import *  # noqa: F403
from gradcore.functional.counting import *  # noqa: F403
from gradcore.functional.creation import *  # noqa: F403
from gradcore.functional.distances import cdist
from gradcore.functional.einsum import einsum
from gradcore.functional.estimates import *  # noqa: F403
from gradcore.functional.folding import *  # noqa: F403
from gradcore.functional.interop import as_tensor, asarray
from gradcore.functional.mathematics import *  # noqa: F403
from gradcore.functional.matrices import *  # noqa: F403
from gradcore.functional.picking import *  # noqa: F403
from gradcore.functional.pointwise import *  # noqa: F403
from gradcore.functional.products import *  # noqa: F403
from gradcore.functional.reducing import *  # noqa: F403
from gradcore.functional.running import *  # noqa: F403
from gradcore.functional.searching import *  # noqa: F403
from gradcore.functional.shape import *  # noqa: F403
from gradcore.functional.windows import *  # noqa: F403

#: The modules that say, in one or both of two tables, what is a method of a tensor.
_WITH_METHODS = (activation, arranging, composed, counting, estimates, folding, linalg, mathematics, matrices, picking,
                 pointwise, products, reducing, reshaped, running, searching, shape, types)
#: Functions that are also methods of a tensor.
METHODS = [name for part in _WITH_METHODS for name in getattr(part, "METHODS", ())]
#: Methods of a tensor that are not functions: in-place forms, and those with another order of arguments.
TENSOR_METHODS = {name: method for part in _WITH_METHODS for name, method in getattr(part, "TENSOR_METHODS", {}).items()}

__all__ = [  # noqa: PLE0604 - strings all
    *activation.__all__, *arranging.__all__, *composed.__all__, *counting.__all__, *creation.__all__, *estimates.__all__,
    *folding.__all__, *mathematics.__all__, *matrices.__all__, *picking.__all__, *pointwise.__all__, *products.__all__,
    *reducing.__all__, *running.__all__, *searching.__all__, *shape.__all__, *windows.__all__, "METHODS", "TENSOR_METHODS",
    "as_tensor", "asarray", "cdist", "einsum", "linalg"]

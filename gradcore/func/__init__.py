"""``gradcore.func``: derivatives as functions of functions, functions of samples over batches, modules as functions.

The names are PyTorch's. All derivatives are computed backwards, and a function over a batch is called sample by sample: values,
structures and errors are PyTorch's, the cost is that of the calls that are made.
"""

from __future__ import annotations

from gradcore.func.batching import vmap
from gradcore.func.derivatives import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp
from gradcore.func.modules import functional_call, replace_all_batch_norm_modules_, stack_module_state

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize",
           "replace_all_batch_norm_modules_", "stack_module_state", "vjp", "vmap"]

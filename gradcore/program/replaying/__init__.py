"""A replay: ``binding`` binds a program to an ``arena``, its ``bound_calls`` with ``stand_ins`` for what each run brings.

``replay`` runs them, with the ``counts`` of optimizers and the gradients that are ``left``; ``narration`` writes the log.
``capture`` makes CUDA graphs of them, over ``fixed`` addresses. ``differentiable`` has one for each call that waits for its
gradient.
"""

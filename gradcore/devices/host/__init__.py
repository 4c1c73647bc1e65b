"""The CPU: ``device`` is its memory and its table of the ``kernels``.

Kernels are written with ``kernel``, over pieces of arrays; those of elementwise functions with ``pointwise``, or with
``scratch`` if they need many temporaries; ``extremes`` has maxima with a number, and ``halves`` converts to float16 and
back. In a replay, ``tape`` writes kernels out as calls of NumPy, and ``fused`` has kernels for several instructions.
"""

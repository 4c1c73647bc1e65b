"""A GPU: ``device`` is its memory and its table of the ``kernels``, ``current`` makes it the current one for each call.

Kernels in CUDA C++ are found by ``sources`` and started by ``launch``; ``again`` repeats launches without the Python code that
chose them, ``fused`` starts those that run several instructions. Matrix products are described by ``problems`` and made by the
libraries of ``gemm``, one of them ``cublas``, or by ``products``, the kernel for small ones. ``workspaces`` has the streams'.

A program is captured by ``graphs``; ``numbers`` and ``mailbox`` are what differs between its launches. ``faults`` says what an
error of CUDA means, and ``loaded`` counts the bytes that code takes.
"""

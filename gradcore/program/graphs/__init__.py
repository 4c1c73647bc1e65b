"""Graphs that are executed by hand: ``explicit`` traces them, and ``chain`` joins them.

``followed`` notes the tensors that they read besides their inputs; ``again`` is ``record`` and ``forward()``.
"""

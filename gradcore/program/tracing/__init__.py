"""A trace: ``tracing`` is all that is open while the function runs, a ``recorder`` with its ``trace_log`` for the launches.

``building`` makes a ``trace`` of the log, ``second`` records the gradient of its results. ``templates``, ``views``, ``carried``
and ``escapes`` are about what the function returns, puts into variables, and leaves behind.
"""

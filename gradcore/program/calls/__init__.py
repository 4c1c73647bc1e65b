"""A call of a compiled function: ``compiling`` and ``compiled`` are the cache of programs, and an ``entry`` is one of them.

``keys`` and ``unread`` say what a call is keyed by, ``attempts`` when tracing is given up. ``check`` is ``check_every``.
"""

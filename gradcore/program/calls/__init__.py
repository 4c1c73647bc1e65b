"""A call of a compiled function: ``compiling`` and ``compiled`` are the cache of programs, ``entry`` is one of them, and
``traced`` a call that makes one.

``keys`` and ``unread`` say what a call is keyed by, ``attempts`` when tracing is given up. ``check`` is ``check_every``.
"""

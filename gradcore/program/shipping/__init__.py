"""Programs in files: ``saved`` is what is saved of a trace, ``files`` writes and reads it, ``encoding`` its parts.

``verify`` checks what was read, and ``loaded`` is the program that runs.
"""

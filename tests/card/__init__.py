"""A card of host memory, which CuPy takes for a GPU: ``python -m tests.card``."""

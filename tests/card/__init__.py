"""A simulated GPU with host memory, which CuPy takes for a real one: ``python -m tests.card``."""

"""Checks and benchmarks that need a GPU, run by one command: ``python -m bench.gpu --out DIR``."""

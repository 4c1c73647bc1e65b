"""Benchmarks. Each prints ratios of interleaved runs: absolute times on shared machines mean little."""

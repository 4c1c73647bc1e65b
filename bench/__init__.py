"""Benchmarks. Most print ratios of interleaved runs, since absolute times on shared machines mean little."""

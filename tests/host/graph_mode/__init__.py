"""Compiled functions, graphs, and programs in files."""

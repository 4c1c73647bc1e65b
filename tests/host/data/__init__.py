"""Data sets, loaders and files."""

"""Gradients, graphs, hooks, views, and when memory goes."""

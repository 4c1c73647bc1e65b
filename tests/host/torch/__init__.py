"""PyTorch's names, arguments, habits and errors."""

"""The CUDA device without a GPU."""

"""Values and gradients of ops and functions."""

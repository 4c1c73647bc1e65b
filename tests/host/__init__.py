"""Tests that compute on the CPU."""

"""Tests that need no numbers."""

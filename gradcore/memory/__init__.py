"""Bytes and streams; never an array."""

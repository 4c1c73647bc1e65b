"""Device memory: bytes and streams, never an array."""

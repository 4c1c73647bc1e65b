"""Device memory in tests: what the pytest plugin, pytest_gradcore.py, is made of. Nothing here needs pytest."""

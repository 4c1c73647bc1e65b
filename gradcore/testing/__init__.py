"""Device memory in tests: what pytest's plugin, entry/pytest_gradcore.py, is made of. Nothing else here needs pytest."""

"""Device memory in tests: the parts of the pytest plugin, entry/pytest_gradcore.py, that do not need pytest."""

"""``assert_close``, and device memory in tests: the parts of the pytest plugin, entry/pytest_gradcore.py, without pytest."""

from gradcore.testing.comparison import assert_close

__all__ = ["assert_close"]

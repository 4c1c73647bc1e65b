"""The account of memory: logs, limits, growth, holders."""

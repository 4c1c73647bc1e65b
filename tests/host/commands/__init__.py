"""The commands, and the pytest plugin."""

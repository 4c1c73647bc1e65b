"""The command ``gradcore``."""

"""``gradcore.utils.hooks``: what ``register_hook`` and its like return."""

from gradcore.engine.hooks import RemovableHandle

__all__ = ["RemovableHandle"]

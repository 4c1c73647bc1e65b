"""The older name of ``gradcore.hub.load_state_dict_from_url``, which files of models import."""

from gradcore.hub import load_state_dict_from_url as load_url

__all__ = ["load_url"]

"""Sources of models: files, folders, globs, the built-in zoo; reading without weights, and binding of dimensions."""

from .binding import require_known
from .source import ModelSource, find_models, require_inputs

__all__ = ["ModelSource", "find_models", "require_inputs", "require_known"]

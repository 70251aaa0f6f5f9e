"""What to build from ``transformers``: classes, published sizes, inputs. Data only; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping

from .recipe import Recipe
from .signal_recipes import SIGNALS
from .text_recipes import TEXTS
from .vision_recipes import VISION

__all__ = ["RECIPES"]

RECIPES: Mapping[str, Recipe] = {recipe.entry.name: recipe for recipe in (*VISION, *TEXTS, *SIGNALS)}
"""Zoo name to recipe, in the order of the list."""

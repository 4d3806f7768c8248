"""Composition and checks of configurations; knows no component by name."""

from rlvr.config.config import Config

__all__ = ["Config"]

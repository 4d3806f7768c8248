"""Composing and checking configurations; knows no component by name."""

from rlvr.config.config import Config

__all__ = ["Config"]

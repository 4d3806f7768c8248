"""In-process continuous batching over the policy's own weights."""

from rlvr.core.engine.engine import LocalEngine

__all__ = ["LocalEngine"]

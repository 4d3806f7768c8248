"""In-process continuous batching over the policy's own weights."""

from rlvr.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]

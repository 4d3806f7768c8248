"""A client of vLLM servers that sample for training, and get the policy's weights after every update."""

from rlvr.engines.vllm.engine import Settings, VllmEngine

__all__ = ["Settings", "VllmEngine"]

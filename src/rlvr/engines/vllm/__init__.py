"""A client of vLLM servers that sample for training, and get the policy's weights after every update."""

from rlvr.engines.vllm.engine import VllmEngine, expect
from rlvr.engines.vllm.fleet import check_servers

__all__ = ["VllmEngine", "check_servers", "expect"]

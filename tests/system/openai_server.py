"""A small OpenAI-compatible server on this machine; its model is a Python function: messages -> what is said next."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Model = Callable[[list[dict[str, Any]]], dict[str, Any]]
"""The conversation so far -> `{"content": ...}` or `{"calls": [("name", {"argument": ...})]}`."""


@dataclass
class Server:
    """Its address, and the bodies and keys of all requests."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)


@contextmanager
def serve(model: Model) -> Iterator[Server]:
    """POST URL/chat/completions, while the block lasts."""
    server = Server(url="")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append(body)
            server.keys.add(self.headers.get("Authorization", ""))
            found = self.path.endswith("/chat/completions")
            reply = _completion(body, model(body["messages"])) if found else {"error": {"message": "not found"}}
            data = json.dumps(reply).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server.url = f"http://127.0.0.1:{http.server_port}/v1"
        thread = Thread(target=http.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


def _completion(body: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(said.get("calls", ()))
    ]
    message = {"role": "assistant", "content": said.get("content"), **({"tool_calls": calls} if calls else {})}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }

"""A small OpenAI-compatible server on this machine; its model is a Python function: messages -> what is said next.

It misbehaves on request: a `Fault` in the place of an answer.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

Model = Callable[[list[dict[str, Any]]], dict[str, Any]]
"""The conversation so far -> `{"content": ...}` or `{"calls": [("name", {"argument": ...})]}`; beside them
`token_ids`, `logprobs` and `finish`, where the server tells them."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What comes in the place of an answer: any status, any bytes, or nothing at all."""

    status: int = 200
    body: bytes = b""
    silent: bool = False  # until the server ends
    drips: bool = False  # a byte now and then, until the server ends
    content_type: str = "application/json"


def error(status: int, message: str) -> Fault:
    """An error as OpenAI words it."""
    return Fault(status=status, body=json.dumps({"error": {"message": message, "code": status}}).encode())


Misbehave = Callable[[int, dict[str, Any]], Fault | None]
"""The number of the request for a completion, from 0, and its body -> what goes wrong with it."""


def never(number: int, body: dict[str, Any]) -> Fault | None:
    """Nothing goes wrong."""
    return None


@dataclass
class Server:
    """Its address, and the bodies and keys of all requests."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    most_at_once: int = 0


@contextmanager
def serve(model: Model, *, fault: Misbehave = never, models: Sequence[str] | Fault = ("policy",)) -> Iterator[Server]:
    """POST URL/chat/completions and GET URL/models, while the block lasts."""
    server = Server(url="")
    lock, end = Lock(), Event()
    running = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if isinstance(models, Fault):
                self.answer(models)
            else:
                listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}
                self.answer(Fault(body=json.dumps(listed).encode()))

        def do_POST(self) -> None:
            nonlocal running
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(server.requests)
                server.requests.append(body)
                server.keys.add(self.headers.get("Authorization", ""))
                running += 1
                server.most_at_once = max(server.most_at_once, running)
            found = self.path.endswith("/chat/completions")
            wrong = fault(number, body) or (None if found else error(404, "not found"))
            answer = wrong or Fault(body=json.dumps(_completion(body, model(body["messages"]))).encode())
            with lock:
                running -= 1
            self.answer(answer)

        def answer(self, what: Fault) -> None:
            if what.silent:
                end.wait(60)
                self.close_connection = True
                return
            self.send_response(what.status)
            self.send_header("Content-Type", what.content_type)
            self.send_header("Content-Length", str(len(what.body)))
            self.end_headers()
            for number in range(len(what.body) if what.drips else 0):
                self.wfile.write(what.body[number : number + 1])
                if end.wait(0.02):
                    return
            self.wfile.write(what.body)

        def log_message(self, format: str, *args: Any) -> None:
            return None

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            return None  # a client that gave up

    with Quiet(("127.0.0.1", 0), Handler) as http:
        server.url = f"http://127.0.0.1:{http.server_port}/v1"
        thread = Thread(target=http.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            end.set()
            http.shutdown()
            thread.join()


def _completion(body: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": _as_text(arguments)}}
        for i, (name, arguments) in enumerate(said.get("calls", ()))
    ]
    message = {"role": "assistant", "content": said.get("content"), **({"tool_calls": calls} if calls else {})}
    finish = said.get("finish", "tool_calls" if calls else "stop")
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
    if "logprobs" in said:
        choice["logprobs"] = {"content": [{"token": "x", "logprob": value} for value in said["logprobs"]]}
    if "token_ids" in said:
        choice["token_ids"] = said["token_ids"]
    usage = {"prompt_tokens": 10 * len(body["messages"]), "completion_tokens": 5, "total_tokens": 15}
    about = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"]}
    return {**about, "choices": [choice], "usage": usage}


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)

"""A vLLM server in a thread: a real model behind the routes that the engine asks, and it misbehaves on request.

It keeps weights, versions, pauses and stale prefixes as vLLM does, and can die with everything it samples and come back
without the pushed weights.
"""

from __future__ import annotations

import base64
import copy
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, load_file
from transformers import PreTrainedModel

from rlvr.engines.vllm.extension.rlvr_vllm_launch import CONFIG_KEYS, REFUSED, vocabulary_digest
from rlvr.engines.vllm.server import GENERATE


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Replaces an answer: any status, any bytes, silence, or the end of the connection."""

    status: int = 200
    body: bytes = b""
    location: str | None = None
    silent: bool = False  # until the server ends
    drops: bool = False


Change = Callable[[dict[str, Any]], Any]
"""Changes an honest answer, which is then sent."""
Misbehave = Callable[[str, int], "Fault | Change | None"]
"""(route, number of earlier requests for it) -> the fault."""


def wrong_at(route: str, wrong: Fault | Change, *counts: int) -> Misbehave:
    """Goes wrong at one route: at every request, or at those with one of these numbers."""
    return lambda asked, count: wrong if asked == route and (not counts or count in counts) else None


def refusal(reason: str) -> Fault:
    """What vLLM answers when a worker raised."""
    message = f"Worker failed with error '{REFUSED} ValueError: {reason}'"
    return Fault(status=500, body=json.dumps({"error": {"message": message}}).encode())


class DiedError(Exception):
    """Of every request under way when the server dies."""


@dataclass
class FakeVllm:
    """Starts at `start()`, on a port that it keeps over deaths."""

    model: PreTrainedModel
    words: Mapping[str, int]
    fault: Misbehave = lambda route, count: None
    facts: dict[str, Any] = field(default_factory=dict)  # replace the true ones
    name: str = "some/model"
    is_raw: bool = False  # tells logprobs before the temperature
    keeps_head: bool = False  # loads everything but the head
    on_update: Callable[[], None] = lambda: None  # as weights arrive
    holds_at: int | None = None  # pauses each completion at this number of tokens until it is None
    port: int = 0
    calls: list[str] = field(default_factory=list)  # routes in order, sampling left out
    bodies: list[dict[str, Any]] = field(default_factory=list)  # requests for completions
    keys: set[str] = field(default_factory=set)
    most_at_once: int = 0

    def __post_init__(self) -> None:
        self.original = copy.deepcopy(self.model).eval()
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self.weights = copy.deepcopy(self.original)
        self.adapters: dict[str, PreTrainedModel] = {}  # the model with each
        self.version = "default"
        self._coming: dict[str, torch.Tensor] = {}
        self.prefixes: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}  # logits after a prompt, as first computed
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.died = threading.Event()
        self.running = 0
        self._waiting: list[int] = []  # how many tokens each completion has that waits

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def held(self) -> int:
        """How many completions have `holds_at` tokens."""
        return self._waiting.count(-1 if self.holds_at is None else self.holds_at)

    def start(self) -> FakeVllm:
        self._begin()
        self._server = _Quiet(("127.0.0.1", self.port), _handler(self))
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def die(self) -> None:
        """At once, with everything that is under way."""
        self.died.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        route = path.partition("?")[0]
        with self._lock:
            count = self._counts.get(route, 0)
            self._counts[route] = count + 1
            if route != GENERATE:
                self.calls.append(f"{path} {body.get('method', '')}".strip())
        wrong = self.fault(route, count)
        if isinstance(wrong, Fault):
            return wrong
        honest = self._honest(route, body)
        return honest if wrong is None else wrong(honest)

    def _honest(self, route: str, body: dict[str, Any]) -> Any:
        match route:
            case "/pause":
                with self._lock:  # no token is half done
                    self.goes_on.clear()
                return {"status": "paused"}
            case "/resume":
                self.goes_on.set()
                return {"status": "resumed"}
            case "/collective_rpc":
                assert "timeout" not in body, "vLLM's next answers would be those to earlier questions"
                return {"results": [self._describe() if body["method"] == "describe" else None]}
            case "/init_weight_transfer_engine" | "/start_weight_update" | "/update_weights" | "/finish_weight_update":
                return self._transfer(route, body)
            case "/reset_prefix_cache":
                self.prefixes.clear()
                return {"success": True}
            case "/update_weight_version":
                self.version = body["new_version"]
                return {"success": True}
            case "/weight_info":
                return {"weight_version": self.version}
            case "/v1/load_lora_adapter":
                model = copy.deepcopy(self.original)
                model.load_adapter(body["lora_path"])
                self.adapters[body["lora_name"]] = model
                return {}
            case "/v1/unload_lora_adapter" if body["lora_name"] in self.adapters:
                del self.adapters[body["lora_name"]]
                return {}
            case "/v1/models":
                return {"data": [{"id": "an-adapter", "parent": self.name}, {"id": self.name, "parent": None}]}
            case "/inference/v1/generate" if body["model"] in {self.name, *self.adapters}:
                return self._generate(body)
        return Fault(status=404, body=b'{"detail": "Not Found"}')

    def _describe(self) -> dict[str, Any]:
        return {
            "vllm": "0.0",
            "architecture": type(self.original).__name__,
            "device": "cpu",
            "gpu": None,
            "num_workers": 1,
            "config": {key: getattr(self.original.config, key, None) for key in CONFIG_KEYS},
            "dtype": "float32",
            "quantization": None,
            "max_model_len": self.original.config.max_position_embeddings,
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": 20,
            "max_lora_rank": 0,
            "chunked_prefill": False,
            "tokenizer": vocabulary_digest(dict(self.words)),
        } | self.facts

    def _transfer(self, route: str, body: dict[str, Any]) -> Any:
        if route == "/init_weight_transfer_engine":
            assert body["init_info"] == {"transport": "files"}
        elif route == "/start_weight_update":
            self._coming = {}
        elif route == "/update_weights":
            return self._update(body["update_info"])
        else:
            with self._lock, torch.no_grad():
                for name, parameter in self.weights.named_parameters():
                    parameter.copy_(self._coming.get(name, parameter))
                self.version = body["weight_version"]
        return {}

    def _update(self, info: dict[str, Any]) -> Any:
        self.on_update()
        if "data" in info:
            self._coming |= load(base64.b64decode(info["data"]))
        else:
            files = Path(info["path"]).glob("*.safetensors")
            self._coming |= {name: tensor for file in files for name, tensor in load_file(file).items()}
        if info["is_last"] and self._coming.keys() != {name for name, _ in self.weights.named_parameters()}:
            return refusal("not all weights came")
        if self.keeps_head:
            self._coming.pop("lm_head.weight", None)
        return {}

    def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        settings = body["sampling_params"]
        name = body["model"]
        with self._lock:
            self.bodies.append(body)
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
        try:
            return self._sample(name, self.adapters.get(name, self.weights), tuple(body["token_ids"]), settings)
        finally:
            with self._lock:
                self.running -= 1

    def _sample(
        self, name: str, model: PreTrainedModel, prompt: tuple[int, ...], settings: dict[str, Any]
    ) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(settings["seed"])
        ids: list[int] = []
        content: list[dict[str, Any]] = []
        spans: list[dict[str, Any]] = []
        finish = "length"
        while len(ids) < settings["max_tokens"]:
            self._wait(len(ids))
            with self._lock:
                if not self.goes_on.is_set():
                    continue
                logprobs, version = self._logprobs(name, model, (*prompt, *ids), settings), self.version
            probs = logprobs.exp()
            token = int(probs.argmax() if settings["temperature"] == 0 else probs.multinomial(1, generator=generator))
            ids.append(token)
            top = logprobs.topk(min(settings["logprobs"], len(logprobs)))
            likely = [{"token_id": t, "logprob": p} for p, t in zip(*map(torch.Tensor.tolist, top), strict=True)]
            content.append({"token_id": token, "logprob": float(logprobs[token]), "top_logprobs": likely})
            if not spans or spans[-1]["version"] != version:
                spans.append({"version": version, "start": len(ids) - 1, "end": len(ids)})
            spans[-1]["end"] = len(ids)
            if token in settings["stop_token_ids"]:
                finish = "stop"
                break
        choice = {"finish_reason": finish, "token_ids": ids, "logprobs": {"content": content}, "weight_versions": spans}
        return {"choices": [choice]}

    def _wait(self, num_sampled: int) -> None:
        """Until nothing is paused or held; a dead server samples nothing."""
        died = self.died  # of this life
        self._waiting.append(num_sampled)
        while not died.is_set() and (not self.goes_on.wait(0.02) or num_sampled == self.holds_at):
            time.sleep(0.002)
        if died.is_set():
            raise DiedError
        self._waiting.remove(num_sampled)

    @torch.no_grad()
    def _logprobs(
        self, name: str, model: PreTrainedModel, prefix: tuple[int, ...], settings: dict[str, Any]
    ) -> torch.Tensor:
        logits = self.prefixes.get((name, prefix))
        if logits is None:
            logits = model(input_ids=torch.tensor([prefix]), use_cache=False).logits[0, -1]
            self.prefixes[name, prefix] = logits
        logprobs = torch.log_softmax(logits / ((not self.is_raw and settings["temperature"]) or 1.0), -1)
        if settings["top_k"]:
            least = logprobs.topk(settings["top_k"]).values[-1]
            logprobs = torch.log_softmax(torch.where(logprobs < least, -torch.inf, logprobs), -1)
        return logprobs.clamp(min=-9999.0)


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # the pitfall of a small backlog: connections that hang
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away, and the server dies: both are tests."""


def _handler(fake: FakeVllm) -> type[BaseHTTPRequestHandler]:
    died = fake.died  # of this life

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.serve({})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.serve(json.loads(self.rfile.read(length)) if length else {})

        def serve(self, body: dict[str, Any]) -> None:
            fake.keys.add(self.headers.get("Authorization", ""))
            answer = Fault(drops=True)
            with suppress(DiedError):
                found = fake.answer(self.path, body)
                if not died.is_set():
                    answer = found if isinstance(found, Fault) else Fault(body=json.dumps(found).encode())
            if answer.silent:
                died.wait()
            if answer.drops or answer.silent:
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(answer.body)))
            if answer.location is not None:
                self.send_header("Location", answer.location)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    return Handler


@contextmanager
def running(*fakes: FakeVllm) -> Iterator[None]:
    """Servers that end with the block, if they have not died in it."""
    for fake in fakes:
        fake.start()
    try:
        yield
    finally:
        for fake in fakes:
            with suppress(OSError):
                fake.die()

"""Bodies of requests, spoilt at one or more places."""

import random

from pydantic_core import to_json

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WEIRD = [
    *(None, True, False, 0, -1, 1, 2, 10**30, -(10**30), 1e308, -1e-320, float("nan"), float("inf")),
    *("", "x", "\x00", "\ud800", "\uffff", "<|im_end|>", "9" * 5000),
    *([], {}, [[]], [[], []], [None], [-1], [399], [400], [1.5], [True], ["x", 1], {"a": {}}, [1] * 3000),
    *([["x"]], [[1], ["x"]], {"type": "text"}, [{"type": "text", "text": None}]),
]
KEYS = [
    *("model", "prompt", "messages", "n", "seed", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids"),
    *("max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "stream_options", "tools", "tool_choice"),
    *("best_of", "echo", "logit_bias", "response_format", "user", "ignore_eos", "return_token_ids", "x", ""),
]


def spoilt(rng: random.Random) -> tuple[str, list[bytes]]:
    """A path and the blocks of a body."""
    path = rng.choice([COMPLETIONS, CHAT])
    message = {"role": "user", "content": "x"}
    body = {"max_tokens": 1} | ({"prompt": "x"} if path == COMPLETIONS else {"messages": [message]})
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        spoil(body, rng)
    data = b'{"prompt": "\\ud800"}'
    if "\\ud800" not in ascii(body):
        data = to_json(body, inf_nan_mode="constants", serialize_unknown=True)
    if rng.random() < 0.3:
        data = noise(data, rng)
    cut = rng.randrange(len(data) + 1)
    return path, [data[:cut], data[cut:]]


def spoil(body, rng: random.Random) -> None:
    """Change something in a JSON object, at any depth."""
    inner = [value for value in body.values() if isinstance(value, dict) and value]
    inner += [each for value in body.values() if isinstance(value, list) for each in value if isinstance(each, dict)]
    if inner and rng.random() < 0.5:
        spoil(rng.choice(inner), rng)
        return
    key = rng.choice([*body, rng.choice([*KEYS, "role", "content", "tool_calls", "type", "function", "name"])])
    body[key] = rng.choice(WEIRD)
    if key in ("tools", "tool_calls") or rng.random() < 0.1:
        function = {"name": "f", "arguments": rng.choice(["", "{}", "[", 3]), "parameters": {"type": "object"}}
        function["parameters"]["properties"] = rng.choice([{"a": rng.choice(WEIRD)}, rng.choice(WEIRD), {}])
        body["tools"] = [{"type": "function", "function": function}]
    if rng.random() < 0.02:
        deep = []
        for _ in range(rng.choice([50, 900])):
            deep = [deep]
        body[key] = deep


def noise(data: bytes, rng: random.Random) -> bytes:
    """The body damaged as a line would damage it."""
    place = rng.randrange(len(data) + 1)
    before, after, byte = data[:place], data[place:], bytes([rng.randrange(256)])
    damaged = [before, before + byte + after[1:], before + b"," + after, data + data, b"\xff\xfe" + data]
    return rng.choice([*damaged, b"[" * rng.choice([1, 100_000]) + data, b"x" * 100_001, b""])

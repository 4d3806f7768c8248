"""`rlvr serve` as a process, over sockets."""

import json
import random
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from rlvr.commands.serve.local import ServeSettings, open_served
from rlvr.types import SamplingParams
from tests.system.harness import Cli
from tests.system.served import Server, served
from tests.system.small_qwen import save_small_qwen
from tests.unit.engines.tiny import generate
from tests.unit.serve.fuzz import spoilt

COMPLETIONS = "/v1/completions"
ONE = {"prompt": [1], "max_tokens": 1}
LONG = {"prompt": [40, 41], "max_tokens": 3900, "seed": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen")
    save_small_qwen(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with served(str(folder), ["--served-model-name", "m", "--max-batch-size", "16"]) as there:
        yield there


def test_answers_are_the_engines_for_many_clients_at_once(server: Server, folder: Path) -> None:
    bodies = [
        {"prompt": [40 + i, 50, 60 + i], "seed": i, "max_tokens": 10 + i, "return_token_ids": True, "logprobs": 0}
        for i in range(40)
    ]
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda body: server.post(COMPLETIONS, body), bodies))
    with open_served(str(folder), ServeSettings()) as (alone, _):
        for body, (status, answer) in zip(bodies, answers, strict=True):
            assert status == 200, answer
            sampling = SamplingParams(max_tokens=body["max_tokens"], stop_ids=alone.chat.stop_ids, seed=body["seed"])
            (expected,) = generate(alone.engine, [(body["prompt"], sampling)])
            choice = answer["choices"][0]
            assert choice["token_ids"] == list(expected.token_ids)
            logprobs = choice["logprobs"]["token_logprobs"]
            assert logprobs == pytest.approx(expected.behavior_logprobs, abs=1e-4)
            assert choice["finish_reason"] == expected.stop_reason.value


def test_a_client_that_hangs_up_frees_its_place(server: Server) -> None:
    gone = server.metric("requests_given_up_total")
    connections = [socket.create_connection(server.address) for _ in range(4)]
    for index, connection in enumerate(connections):
        data = json.dumps(LONG | {"stream": index % 2 == 0}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    server.until("completions_running", 4)
    status, answer = server.post(COMPLETIONS, {"prompt": [40], "max_tokens": 3, "ignore_eos": True})
    assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
    for connection in connections:
        connection.close()
    server.until("completions_running", 0)
    assert server.metric("requests_given_up_total") == gone + 4


def test_bad_requests_leave_the_server_as_it_was(server: Server) -> None:
    rng = random.Random(7)
    good = {"prompt": [40, 41], "seed": 3, "max_tokens": 8, "return_token_ids": True}
    _, before = server.post(COMPLETIONS, good)
    for _ in range(300):
        path, blocks = spoilt(rng)
        status, answer = server.post(path, b"".join(blocks))
        assert status == 200 or (400 <= status < 500 and answer["error"]["message"])
    damaged = [b"POST /v1/completions HTTP/1.1\r\n", rng.randbytes(200), b"\r\n\r\n", b"GET"]
    for _ in range(100):  # not even HTTP, or given up in the middle
        with socket.create_connection(server.address) as connection:
            connection.sendall(rng.choice(damaged))
    status, after = server.post(COMPLETIONS, good)
    assert (status, after["choices"]) == (200, before["choices"])


def test_a_body_in_blocks_without_a_length_is_bounded_too(folder: Path, server: Server) -> None:
    blocks = (b"x" * 65536 for _ in range(1_000))
    with closing(server.connect()) as connection:
        try:
            connection.request("POST", COMPLETIONS, blocks, {"Content-Type": "application/json"}, encode_chunked=True)
            with connection.getresponse() as answer:
                status = answer.status
        except (BrokenPipeError, ConnectionResetError):  # it hung up before all was sent
            status = 413
    assert status == 413
    assert server.post(COMPLETIONS, ONE)[0] == 200


def test_sigterm_finishes_running_requests(folder: Path) -> None:
    key = {"Authorization": "Bearer s3cret"}
    with served(str(folder), RLVR_API_KEY="s3cret") as server, ThreadPoolExecutor(1) as pool:
        assert server.post(COMPLETIONS, ONE)[0] == 401
        status, answer = server.post(COMPLETIONS, ONE, key)
        assert (status, answer["model"]) == (200, str(folder))
        running = pool.submit(server.post, COMPLETIONS, LONG | {"max_tokens": 600}, key)
        server.until("completions_running", 1, key)
        server.process.terminate()
        answers = []
        while not running.done() and 503 not in answers:
            answers.append(server.post(COMPLETIONS, ONE, key)[0])
        assert set(answers) <= {200, 503}
        assert 503 in answers
        finished, answer = running.result()
        assert (finished, answer["usage"]["completion_tokens"]) == (200, 600)
        ended, log = server.ended()
    assert ended == 143
    assert "finishing what runs" in log
    assert "Traceback" not in log
    assert "anyone" not in log


def test_ctrl_c_gives_up_slow_requests(folder: Path) -> None:
    options = ["--host", "0.0.0.0", "--shutdown-timeout", "1"]
    with served(str(folder), options) as server, ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.post, COMPLETIONS, LONG | {"n": 60})
        server.until("completions_running", 60)
        server.command.send(signal.SIGINT)
        status, answer = running.result()
        assert (status, answer["error"]["message"]) == (503, "the server is shutting down.")
        ended, log = server.ended()
    assert ended == 130
    assert "Traceback" not in log
    assert "anyone who can reach 0.0.0.0 can use the model: give an --api-key" in log


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["nothing/there/at/all"], 1, "there is no folder nothing/there/at/all"),
        (["openai:http://127.0.0.1:1/v1#m"], 2, "is an endpoint already"),
        (["x", "--tool-format", "hermess"], 2, "--tool-format hermess: did you mean hermes?"),
        (["x", "--api-key", ""], 2, "--api-key: a key has letters"),
        (["x", "--port", "70000"], 2, "70000 is no port"),
        (["x", "--max-queue", "0"], 2, "0 is not a whole number of 1 or more"),
    ],
)
def test_wrong_usage_is_one_sentence(options: list[str], code: int, message: str, cli: Cli) -> None:
    cli.refuses(code, ["serve", "--port", "0", *options], message)


def test_a_question_for_a_model_of_words_gets_the_form_of_its_run(first_run: Path) -> None:
    form = "<boe> 3 4 + ="
    with served(str(first_run), []) as there:

        def prompt_of(text: str) -> str:
            said = [{"role": "user", "content": text}]
            status, answer = there.post("/v1/chat/completions", {"messages": said, "max_tokens": 4, "seed": 1})
            assert status == 200, answer
            status, whole = there.post(COMPLETIONS, {"prompt": form, "max_tokens": 4, "seed": 1})
            same = answer["choices"][0]["message"]["content"] == whole["choices"][0]["text"]
            return "form" if same and answer["usage"]["prompt_tokens"] == 5 else str(answer["usage"]["prompt_tokens"])

        assert [prompt_of(text) for text in ("3 4 +", " 3  4 + ", form)] == ["form"] * 3
        assert prompt_of("3 +") == "2"  # no expression: as it is

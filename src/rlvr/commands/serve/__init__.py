"""`rlvr serve`: a model behind the OpenAI API."""

import argparse
import os
import re

from rlvr.cli.model_arguments import MODEL_HERE, add_config_dir, at_least, hush, note, port
from rlvr.cli.signals import ended_by_sigterm
from rlvr.errors import ConfigError, suggestion
from rlvr.progress import progress

HELP = "serve a model to any client"
DESCRIPTION = """Serve a model: OpenAI's /v1/chat/completions, /v1/completions and /v1/models, plus /health and
/metrics. Requests of all clients are batched together. Only this machine can connect, unless --host says otherwise. The
address is printed on stdout once the server accepts connections. With --engine vllm the server is vLLM's own, as `rlvr
train engine=vllm` needs it; arguments after -- go to vLLM."""
EXAMPLE = """examples:
  rlvr serve runs/latest                                  http://127.0.0.1:8000/v1, until Ctrl-C
  rlvr serve runs/latest --port 0 --served-model-name rpn   any free port
  RLVR_API_KEY=... rlvr serve some/folder --host 0.0.0.0  for other machines, with a key
  rlvr serve runs/latest --engine vllm -- --tensor-parallel-size 2   vLLM, with its own arguments
  rlvr eval openai:http://127.0.0.1:8000/v1#runs/latest --task rpn   evaluate it through the endpoint
"""
KEY_VARIABLE = "RLVR_API_KEY"
NUMBERS = {
    "max_batch_size": (64, "completions sampled at the same time"),
    "max_queue": (512, "waiting completions; more are refused with 429"),
    "max_context_tokens": (None, "of prompt and completion together (default: the model's limit)"),
    "max_body_mib": (4, "size of a request"),
    "request_timeout": (600, "time limit of a request in seconds"),
    "shutdown_timeout": (30, "seconds for running requests to finish at shutdown"),
}
ONLY_WITH = {
    "local": ("max_queue", "max_body_mib", "request_timeout", "tool_format", "config_dir"),
    "vllm": ("vllm_python", "log"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HERE)
    parser.add_argument("--host", metavar="H", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", metavar="P", type=port, default=8000, help="0: any free one (default: 8000)")
    parser.add_argument("--api-key", metavar="K", help=f"clients must send it (default: ${KEY_VARIABLE}, else none)")
    parser.add_argument(
        "--served-model-name",
        metavar="NAME",
        action="append",
        default=[],
        help="model name in requests; may be repeated (default: MODEL)",
    )
    parser.add_argument("--tool-format", metavar="F", help="tool call format (default: the run's)")
    add_config_dir(parser)
    for key, (default, what) in NUMBERS.items():
        told = what if default is None else f"{what} (default: {default})"
        parser.add_argument(f"--{key.replace('_', '-')}", metavar="N", type=at_least(1), help=told)
    parser.add_argument(
        "--engine", choices=("local", "vllm"), default="local", help="local: this program; vllm: vLLM's own server"
    )
    parser.add_argument(
        "--vllm-python",
        metavar="PYTHON",
        help="Python of the environment with vLLM (default: $RLVR_VLLM_PYTHON, else this one)",
    )
    parser.add_argument("--log", metavar="FILE", help="vLLM's log (default: a file whose name is printed)")
    parser.set_defaults(passed_on=[])


def run(args: argparse.Namespace) -> int:
    from rlvr.http_server import check_installed

    _check_engine(args)
    named = f"${KEY_VARIABLE}" if args.api_key is None else "--api-key"
    key = os.environ.get(KEY_VARIABLE) or None if args.api_key is None else args.api_key
    if key is not None and not re.fullmatch("[!-~]+", key):
        raise ConfigError(f"{named}: a key has letters, digits and signs of ASCII, and no spaces or line breaks.")
    if args.engine == "vllm":
        _serve_vllm(args, key or os.environ.get("VLLM_API_KEY") or None)
        return 0
    check_installed("rlvr serve", "llguidance")
    from rlvr.chat.formats import FORMATS

    if args.tool_format not in (None, "auto", *FORMATS):
        raise ConfigError(f"--tool-format {args.tool_format}: {suggestion(args.tool_format, ['auto', *FORMATS])}")
    for name, (default, _) in NUMBERS.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    _serve(args, key)
    return 0


def _check_engine(args: argparse.Namespace) -> None:
    vllm = args.engine == "vllm"
    for name in ONLY_WITH["local" if vllm else "vllm"]:
        if (value := getattr(args, name)) is not None:
            remedy = "pass vLLM's own options after --" if vllm else "add --engine vllm, or leave it out"
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} {value}: has no effect with --engine {args.engine}; {remedy}.")
    if args.passed_on and not vllm:
        raise ConfigError(f"{args.passed_on[0]} after --: is for vLLM; add --engine vllm, or leave it out.")


def _serve_vllm(args: argparse.Namespace, key: str | None) -> None:
    """Run vLLM until it is stopped or dies."""
    from pathlib import Path

    from rlvr.commands.serve.vllm import VllmSettings, open_vllm
    from rlvr.http_server import reserve

    with reserve(args.host, args.port) as free:
        port = int(free.getsockname()[1])
    settings = VllmSettings(
        host=args.host,
        port=port,
        names=tuple(args.served_model_name),
        python=args.vllm_python,
        max_batch_size=args.max_batch_size,
        max_context_tokens=args.max_context_tokens,
        api_key=key,
        arguments=tuple(args.passed_on),
        log=Path(args.log) if args.log else None,
        shutdown_s=float(args.shutdown_timeout or NUMBERS["shutdown_timeout"][0]),
    )
    with ended_by_sigterm(), open_vllm(args.model, settings, note) as server:
        _warn_of(args.host, key, ", and give it other weights")
        note(f"rlvr: serving {', '.join(server.names)}; Ctrl-C stops it")
        print(server.url, flush=True)
        server.wait()


def _warn_of(host: str, key: str | None, more: str = "") -> None:
    from rlvr.http_server import is_loopback

    if not is_loopback(host) and key is None:
        note(f"rlvr: anyone who can reach {host} can use the model{more}: give an --api-key")


def _serve(args: argparse.Namespace, key: str | None) -> None:
    hush()
    with progress("loading libraries"):
        from rlvr.commands.serve.local import ServeSettings, open_served
    from rlvr.http_server import reserve
    from rlvr.serve.app import serve
    from rlvr.serve.endpoint import Limits

    settings = ServeSettings(
        names=tuple(args.served_model_name),
        max_batch_size=args.max_batch_size,
        max_queue=args.max_queue,
        max_context_tokens=args.max_context_tokens,
        tool_format=args.tool_format,
    )
    limits = Limits(max_body_bytes=args.max_body_mib << 20, request_s=float(args.request_timeout))
    with (
        ended_by_sigterm(),
        reserve(args.host, args.port) as listening,
        open_served(args.model, settings, args.config_dir) as (served, notes),
    ):
        _warn_of(args.host, key)
        context = f"{served.max_context_tokens:,} tokens of context"
        for line in [*notes, f"serving {', '.join(served.names)} ({context}); Ctrl-C stops it"]:
            note(f"rlvr: {line}")
        serve(served, args.host, listening, limits, api_key=key, shutdown_s=float(args.shutdown_timeout))

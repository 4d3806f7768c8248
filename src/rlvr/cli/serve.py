"""`rlvr serve`: a model behind the API that every client speaks."""

from __future__ import annotations

import argparse
import os
import sys

from rlvr.cli.model_arguments import MODEL_HELP, at_least
from rlvr.errors import ConfigError

DESCRIPTION = """Serve a model: OpenAI's /v1/chat/completions, /v1/completions and /v1/models; /health and /metrics too.
Requests of all clients are batched together. Only this machine can connect, unless --host says otherwise.
The address is printed on stdout, once it accepts connections."""
EXAMPLE = """examples:
  rlvr serve runs/latest                                  http://127.0.0.1:8000/v1, until Ctrl-C
  rlvr serve runs/latest --port 0 --served-model-name rpn   any free port
  RLVR_API_KEY=... rlvr serve some/folder --host 0.0.0.0  for other machines, with a key
  rlvr eval openai:http://127.0.0.1:8000/v1#runs/latest --task rpn   measure it through the endpoint
"""
KEY_VARIABLE = "RLVR_API_KEY"
MIB = 1 << 20


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `serve` to the command line."""
    parser = subparsers.add_parser("serve", help="serve a model to any client", description=DESCRIPTION, epilog=EXAMPLE)
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("--host", metavar="H", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", metavar="P", type=_port, default=8000, help="0: any free one (default: 8000)")
    parser.add_argument("--api-key", metavar="K", help=f"what clients must send (default: ${KEY_VARIABLE}, else none)")
    parser.add_argument(
        "--served-model-name",
        metavar="NAME",
        action="append",
        default=[],
        help="what requests call the model; may be repeated (default: MODEL)",
    )
    parser.add_argument("--tool-format", metavar="F", help="how tools are called (default: the run's way)")
    number = at_least(1)
    for option, default, what in (
        ("--max-batch-size", 64, "completions that are sampled at the same time"),
        ("--max-queue", 512, "completions that wait; more are refused with 429"),
        ("--max-context-tokens", None, "of prompt and completion together (default: what the model can)"),
        ("--max-body-mib", 4, "size of a request"),
        ("--request-timeout", 600, "seconds until a request is given up"),
        ("--shutdown-timeout", 30, "seconds that running requests have to finish when the server ends"),
    ):
        told = what if default is None else f"{what} (default: {default})"
        parser.add_argument(option, metavar="N", type=number, default=default, help=told)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; the exit status."""
    from rlvr.serve.server import Address, check_installed

    check_installed()
    _check_tool_format(args.tool_format)
    key = os.environ.get(KEY_VARIABLE) if args.api_key is None else args.api_key
    if args.api_key == "":
        raise ConfigError("--api-key is empty: give a key, or leave the option out.")
    address = Address(host=args.host, port=args.port)
    _serve(args, address, key or None)
    return 0


def _serve(args: argparse.Namespace, address: object, key: str | None) -> None:
    import logging

    from transformers.utils.logging import disable_progress_bar

    from rlvr.build.serving import ServeSettings, open_served
    from rlvr.serve.endpoint import Limits
    from rlvr.serve.server import Address, reserve, serve

    assert isinstance(address, Address)
    disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # the failure is told once, in a sentence
    settings = ServeSettings(
        names=tuple(args.served_model_name),
        max_batch_size=args.max_batch_size,
        max_queue=args.max_queue,
        max_context_tokens=args.max_context_tokens,
        tool_format=args.tool_format,
    )
    limits = Limits(max_body_bytes=args.max_body_mib * MIB, request_s=float(args.request_timeout))
    with reserve(address) as listening, open_served(args.model, settings) as (served, notes):
        if not address.is_loopback and key is None:
            notes = [*notes, f"everybody who reaches {args.host} can use the model: give an --api-key"]
        for note in notes:
            print(f"rlvr: {note}", file=sys.stderr)
        names = ", ".join(served.names)
        print(
            f"rlvr: serving {names} ({served.max_context_tokens:,} tokens of context); Ctrl-C stops it", file=sys.stderr
        )
        serve(served, address, listening, limits, api_key=key, shutdown_s=float(args.shutdown_timeout))


def _check_tool_format(name: str | None) -> None:
    from rlvr.chat.formats import FORMATS

    if name is not None and name != "auto" and name not in FORMATS:
        raise ConfigError(f"--tool-format {name}: there is no such format; choose auto, {', '.join(FORMATS)}.")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text} is no port, 0 to 65535")
    return int(text)

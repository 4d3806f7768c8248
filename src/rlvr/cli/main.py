"""The command `rlvr`: parses arguments, runs one command, turns errors into one sentence and an exit status.

Exit status: 0 done, 1 failed, 2 wrong usage or setting, 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP (all after saving).
"""

import argparse
import importlib
import os
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import NoReturn

from rlvr import __version__
from rlvr.cli.signals import sentence
from rlvr.cli.versions import note_untested_versions
from rlvr.errors import ConfigError, UserError, nearest, suggestion
from rlvr.imports import user_code
from rlvr.quiet import hide_library_warnings
from rlvr.scale.launch import is_local_main_process, tell_launcher, wait_for_the_end

DESCRIPTION = "Train language models with reinforcement learning from verifiable rewards."
EXAMPLE = """example:
  rlvr train                  learn arithmetic on this machine: a minute on a CPU
  rlvr train --help           how to change anything about it
"""


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors and no prefix matching of long options."""

    def __init__(self, **options: object) -> None:
        options |= {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(**options)  # type: ignore[arg-type]

    more_help: Callable[[], str] = str
    """What stands below the examples; made only where help is printed."""

    def format_help(self) -> str:
        return super().format_help() + self.more_help()

    def error(self, message: str) -> NoReturn:
        if not is_local_main_process():
            wait_for_the_end()
        text = f"rlvr: error: {message}; see `{self.prog} --help`"
        tell_launcher(text)
        self.exit(2, f"{text}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: `sys.argv[1:]`) and return the exit status."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads: idle threads must not spin
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        code = _run(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse, or the second signal
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # the reader of stdout is gone (`rlvr ... | head`); avoid an error at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (UserError, OSError, MemoryError) as error:
        text = f"rlvr: error: {sentence(error)}"
        print(text, file=sys.stderr)
        tell_launcher(text)
        return error.exit_code if isinstance(error, UserError) else 1


def program() -> NoReturn:
    """`rlvr` as its own process: exits without waiting for hanging trackers or their libraries."""
    hide_library_warnings()
    if is_local_main_process():
        note_untested_versions()
    code = main()
    if any(thread.name.startswith("tracker ") for thread in threading.enumerate()):
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def _run(argv: list[str]) -> int:
    name = argv[0] if argv else ""
    ours = _own_modules()
    modules = ours if name in ours else command_modules()  # packages take 6 ms to look through
    parser, commands = _parsers({name: modules[name]} if name in modules else modules)
    if name and not name.startswith("-") and name not in commands:
        parser.error(f"there is no command {name}; {suggestion(name, list(commands)).rstrip('.')}")
    # for `serve`, arguments after -- belong to another program; argparse would split them
    end = argv.index("--") if argv[:1] == ["serve"] and "--" in argv else len(argv)
    args, rest = parser.parse_known_args(argv[:end])
    if argv[end + 1 :]:
        args.passed_on = argv[end + 1 :]
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    # argparse fills a list of positionals once, but overrides may come before and after options
    dashed = [word for word in rest if word.startswith("-")]
    if rest and (dashed or not hasattr(args, "overrides")):
        word = (dashed or rest)[0]
        commands[args.command].error(f"unknown argument {word}{_flag_hint(word, commands[args.command], args.command)}")
    if rest:
        args.overrides += rest
    try:
        return args.run_command(args)
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
        raise UserError("code that was called, a component's or a library's, ended the program by sys.exit.") from stop


@contextmanager
def no_exit() -> Iterator[None]:
    """A module that ends the program while it is imported has failed."""
    try:
        yield
    except SystemExit as stop:
        raise ImportError(f"it ends the program (exit status {stop.code})") from stop


def _flag_hint(word: str, parser: Parser, command: str) -> str:
    """A hint for options of other programs, such as `--learning-rate 1e-5`."""
    flag = word.partition("=")[0]
    if command == "train":
        from rlvr.config.messages import find_spelling

        spelling = find_spelling(flag.lstrip("-").replace("-", "_"))
        if spelling is not None:
            return f"; {spelling.translated.rstrip('.')}"
    if near := nearest(flag, parser._option_string_actions):
        return f"; did you mean {near}?"
    return f"; an override has no dashes: {word.lstrip('-')}" if flag != word and flag.startswith("-") else ""


def command_modules() -> dict[str, str]:
    """Commands by name, with their modules: the folders of `rlvr.commands`, and what installed packages bring:

        [project.entry-points."rlvr.commands"]
        diary = "my_package.diary"

    Such a module has HELP, DESCRIPTION, EXAMPLE, `add_arguments(parser)`, `run(args) -> exit status`, and may have
    `more_help() -> str`.
    """
    return {point.name: point.value for point in entry_points(group="rlvr.commands")} | _own_modules()


def _own_modules() -> dict[str, str]:
    (folder,) = importlib.import_module("rlvr.commands").__path__
    return {found.name: f"rlvr.commands.{found.name}" for found in pkgutil.iter_modules([folder])}


def _parsers(modules: Mapping[str, str]) -> tuple[Parser, dict[str, Parser]]:
    """The parser and its commands. A command's module loads nothing heavy before its `run`.

    ConfigError if the only one cannot be loaded; among others it is listed with the reason.
    """
    parser = Parser(prog="rlvr", description=DESCRIPTION, epilog=EXAMPLE)
    parser.add_argument("--version", action="version", version=f"rlvr {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, path in modules.items():
        try:
            with user_code(f"the command {name}: its module {path}"), no_exit():
                module = importlib.import_module(path)
                words = {"description": module.DESCRIPTION, "epilog": module.EXAMPLE}
                words["help"] = module.HELP.replace("%", "%%")
                module.add_arguments(Parser())  # before anything is listed
                run = module.run
        except ConfigError as error:
            if len(modules) == 1:
                raise
            subparsers.add_parser(name, help=str(error).replace("%", "%%"))
            continue
        command = subparsers.add_parser(name, **words)
        module.add_arguments(command)
        command.set_defaults(run_command=run)
        command.more_help = getattr(module, "more_help", str)
    return parser, subparsers.choices  # type: ignore[return-value]


if __name__ == "__main__":
    program()

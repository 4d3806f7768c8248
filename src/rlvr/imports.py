"""User modules: found in the current folder, in `--config-dir`, or among installed packages."""

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from pathlib import Path
from typing import Any

import rlvr
from rlvr.errors import ConfigError, UserError, suggestion

_FOREIGN = (
    "<frozen",
    f"{Path(rlvr.__file__).parent}/",
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")),
)
"""Path prefixes of files that are not the user's."""

folders: list[str] = []  # import folders besides the current one, see `look_in`


def look_in(folder: str | None) -> None:
    """Also import user modules from this folder (`--config-dir`)."""
    if folder is not None and (path := str(Path(folder).resolve())) not in folders:
        folders.append(path)


def is_ours(component: object) -> bool:
    """Whether the class of a component is rlvr's, not a user's."""
    return type(component).__module__.startswith("rlvr.")


def imported(what: str, path: str, kind: str, fits: Callable[[Any], bool]) -> Any:
    """The object at `module:name`, checked by `fits`. ConfigError starts with `what`, e.g. `key=value`; `kind`
    describes it."""
    module_name, _, name = path.partition(":")
    if module_name == "__main__" or "_lambda_" in name or "_locals_" in name:  # as `rlvr.train` names them
        raise ConfigError(
            f"{what}: is a {kind} that was given in Python, which no other program can import: give it again to "
            "rlvr.train or rlvr.evaluate, or put it into a module."
        )
    # last, so that no file there hides a package; and not removed, because methods of its classes may import later
    sys.path.extend(folder for folder in [os.getcwd(), *folders] if folder not in sys.path)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # user code
        remedy = "correct it, install it, or start rlvr in the folder that contains it"
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("rlvr."):
            remedy = f"there is no {error.name}; CHANGELOG.md says what has moved"
        raise ConfigError(
            f"{what}: module {module_name} cannot be imported ({described(error, own_only=True)}); {remedy}."
        ) from error
    found = reduce(lambda owner, attribute: getattr(owner, attribute, None), name.split("."), module)
    if fits(found):
        return found
    problem = f"has no {kind} {name}" if found is None else f"has {name}, which is no {kind}"
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", 0) == module_name and fits(value)]
    raise ConfigError(f"{what}: module {module_name} {problem}; {suggestion(name, own) if own else 'add one.'}")


@contextmanager
def user_code(what: str, passing: type[Exception] = UserError) -> Iterator[None]:
    """Turn any exception of user code in the block into a ConfigError that starts with `what`; ours pass through."""
    try:
        yield
    except (UserError, passing):
        raise
    except Exception as error:
        raise ConfigError(f"{what} raised {described(error)}; correct it.") from error


def code_of(component: object, what: str) -> AbstractContextManager[None]:
    """`user_code` around the methods of a user's component; nothing around those of ours."""
    return nullcontext() if is_ours(component) else user_code(what)


def described(error: BaseException, own_only: bool = False) -> str:
    """`KeyError: 'level' (my_rewards.py, line 12)`, with the last line of user code.

    Without user code it is the last line of the traceback, or with `own_only` no line.
    """
    try:
        text = str(error)
    except Exception:  # its own __str__ fails
        text = ""
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in places if not place[0].startswith(_FOREIGN)]
    own = own or ([] if own_only else places)
    where = f" ({os.path.relpath(own[-1][0])}, line {own[-1][1]})" if own else ""
    text = text.partition("\n\nFor further information visit")[0]  # pydantic's
    return f"{type(error).__name__}: {text[:400]}{where}"

"""Where a model is: a folder, the local cache or the Hub, and one sentence for each way in which it is not.

One request asks the Hub before anything is loaded: transformers itself retries every file for 23 seconds and takes the
same error apart in several layers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlvr.errors import UserError

PROBE_TIMEOUT_S = 10.0
MODEL, ADAPTER = "config.json", "adapter_config.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Located:
    """A model that is there. `offline`: everything is local, no request is to be made."""

    name: str
    offline: bool
    is_adapter: bool  # low-rank adapters for another model, which adapter_config.json names


def locate(name: str) -> Located:
    """Look for a model folder or Hub id.

    Raises UserError, within PROBE_TIMEOUT_S, if it is neither, or the Hub cannot be reached or refuses.
    """
    folder = Path(name)
    if folder.is_dir():
        return Located(name=name, offline=True, is_adapter=_adapter_folder(folder))
    _check_id(name)
    cached = [file for file in (MODEL, ADAPTER) if _is_cached(name, file)]
    found, problem = _ask(name)
    if problem is None:
        return Located(name=name, offline=False, is_adapter=found == ADAPTER)
    if not cached or not _unreachable(problem):
        raise sentence(name, problem) from problem
    log.warning("the Hub cannot be reached: %s is taken from the local cache", name)
    return Located(name=name, offline=True, is_adapter=cached[0] == ADAPTER)


def _adapter_folder(folder: Path) -> bool:
    if (folder / MODEL).is_file():
        return False
    if (folder / ADAPTER).is_file():
        return True
    raise UserError(f"the folder {str(folder)!r} holds no model (no {MODEL}): name a folder in Hub format")


def _check_id(name: str) -> None:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"{name!r} is no folder here and no Hub id: name a model folder or a Hub id") from error


def _is_cached(name: str, file: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, file), str)


def _ask(name: str) -> tuple[str | None, Exception | None]:
    """The first of config.json and adapter_config.json that the Hub has, or what went wrong. One try each."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    problem: Exception | None = None
    for file in (MODEL, ADAPTER):
        try:
            get_hf_file_metadata(hf_hub_url(name, file), timeout=PROBE_TIMEOUT_S)
        except EntryNotFoundError as error:
            problem = error
        except Exception as error:  # transport errors have no common base class over versions of the client
            return None, error
        else:
            return file, None
    return None, problem


def _unreachable(error: BaseException) -> bool:
    """No answer at all, or a server that is down: what is cached may be used. A refusal is no reason for that."""
    status = _status(error)
    return status is None or status >= 500


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def sentence(name: str, error: BaseException) -> UserError:
    """The UserError for an error of the Hub, which may be wrapped in others."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    chain = list(_chain(error))

    def is_a(kind: type[BaseException]) -> bool:
        return any(isinstance(link, kind) for link in chain)

    status = next((code for link in chain if (code := _status(link)) is not None), None)
    what = f"the model {name!r}"
    if is_a(GatedRepoError):
        return UserError(
            f"{what} is gated: ask for access at {_page(name)}, then log in with `hf auth login` or set HF_TOKEN"
        )
    if is_a(RepositoryNotFoundError):
        return UserError(
            f"{what} is no folder here, and the Hub has none of that name that you may see: check the spelling, "
            "or log in with `hf auth login` if it is private"
        )
    if is_a(EntryNotFoundError) and status == 404:
        return UserError(f"{what} on the Hub holds no model (neither {MODEL} nor {ADAPTER}): name another one")
    if status in (401, 403):
        return UserError(
            f"the Hub refused your token for {what} (status {status}): make a new one at "
            f"{_endpoint()}/settings/tokens and set HF_TOKEN"
        )
    if is_a(OfflineModeIsEnabled):
        return UserError(
            f"{what} is no folder here and not in the local cache, and HF_HUB_OFFLINE forbids to ask the Hub: "
            "name a model folder, or unset HF_HUB_OFFLINE"
        )
    reason = f"it answered {status}" if status else _first_line(chain[-1])
    return UserError(
        f"{what} is no folder here, and the Hub at {_endpoint()} cannot be reached ({reason}): check the network, "
        "or name a model folder"
    )


def from_hub(error: BaseException) -> bool:
    """Whether an error of transformers has one of the Hub's behind it."""
    return any(type(link).__module__.startswith(("huggingface_hub", "httpx", "httpcore")) for link in _chain(error))


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _page(name: str) -> str:
    return f"{_endpoint()}/{name}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

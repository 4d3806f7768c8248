"""Find a model in a folder, the local cache or on the Hub; one sentence for each way to fail.

One request asks the Hub before anything is loaded: transformers itself retries every file for 23 seconds.
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
    """An existing model. `offline`: everything is local, no request is made."""

    name: str
    offline: bool
    is_adapter: bool  # LoRA weights for another model, which adapter_config.json names

    def adapter_folder(self) -> Path | None:
        """The folder of an adapter, downloaded if it is on the Hub; None for a whole model."""
        if not self.is_adapter or Path(self.name).is_dir():
            return Path(self.name) if self.is_adapter else None
        from huggingface_hub import snapshot_download

        patterns = ["*.json", "*.safetensors"]
        try:
            return Path(snapshot_download(self.name, local_files_only=self.offline, allow_patterns=patterns))
        except Exception as error:  # network
            raise sentence(self.name, error) from error


def locate(name: str) -> Located:
    """Look for a model folder or Hub id. UserError, within PROBE_TIMEOUT_S, if there is none or the Hub refuses."""
    folder = Path(name)
    if folder.is_dir():
        is_adapter = not (folder / MODEL).is_file()
        if is_adapter and not (folder / ADAPTER).is_file():
            raise UserError(f"the folder {str(folder)!r} holds no model (no {MODEL}): name a folder in Hub format")
        return Located(name=name, offline=True, is_adapter=is_adapter)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise UserError(f"{name!r} is no folder here and no Hub id: name a model folder or a Hub id") from error
    cached = [file for file in (MODEL, ADAPTER) if isinstance(try_to_load_from_cache(name, file), str)]
    found, problem = _ask(name)
    if problem is None:
        return Located(name=name, offline=False, is_adapter=found == ADAPTER)
    status = _status(problem)
    is_down = status is None or status >= 500  # a refusal is no reason to use the cache
    if not cached or not is_down:
        raise sentence(name, problem) from problem
    log.warning("the Hub cannot be reached: %s is taken from the local cache", name)
    return Located(name=name, offline=True, is_adapter=cached[0] == ADAPTER)


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


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def sentence(name: str, error: BaseException) -> UserError:
    """The UserError for an error of the Hub, which may be wrapped in others."""
    from huggingface_hub import constants, errors

    chain = list(_chain(error))
    status = next((code for link in chain if (code := _status(link)) is not None), None)
    what, hub = f"the model {name!r}", constants.ENDPOINT

    def is_a(kind: type[BaseException]) -> bool:
        return any(isinstance(link, kind) for link in chain)

    if is_a(errors.GatedRepoError):
        said = f"{what} is gated: ask for access at {hub}/{name}, then log in with `hf auth login` or set HF_TOKEN"
    elif is_a(errors.RepositoryNotFoundError):
        said = (
            f"{what} is no folder here, and the Hub has none of that name that you may see: check the spelling, "
            "or log in with `hf auth login` if it is private"
        )
    elif is_a(errors.EntryNotFoundError) and status == 404:
        said = f"{what} on the Hub holds no model (neither {MODEL} nor {ADAPTER}): name another one"
    elif status in (401, 403):
        said = f"the Hub refused your token for {what} (status {status}): make a new one at {hub}/settings/tokens"
    elif is_a(errors.OfflineModeIsEnabled):
        said = (
            f"{what} is no folder here and not in the local cache, and HF_HUB_OFFLINE forbids to ask the Hub: "
            "name a model folder, or unset HF_HUB_OFFLINE"
        )
    else:
        last = chain[-1]
        reason = f"it answered {status}" if status else str(last).strip().partition("\n")[0] or type(last).__name__
        said = (
            f"{what} is no folder here, and the Hub at {hub} cannot be reached ({reason}): check the network, or name "
            "a model folder"
        )
    return UserError(said)


def from_hub(error: BaseException) -> bool:
    """Whether an error of transformers has one of the Hub's behind it."""
    return any(type(link).__module__.startswith(("huggingface_hub", "httpx", "httpcore")) for link in _chain(error))

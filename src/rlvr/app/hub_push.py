"""Upload an exported folder to the Hub, and one sentence for each way in which that fails."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rlvr.errors import ConfigError, UserError


def check_repository(name: str) -> None:
    """ConfigError unless `name` is an owner and a name, as the Hub takes them."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
        if name.count("/") == 1:
            return
    except HFValidationError:
        pass
    raise ConfigError(f"--push {name}: is no repository of the Hub; write owner/name, e.g. ann/rpn-grpo.")


def check_token() -> None:
    """UserError if there is nobody to push as, or the Hub is not to be asked: found out before anything is merged."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise UserError("--push needs the Hub, and HF_HUB_OFFLINE forbids to ask it: unset HF_HUB_OFFLINE.")
    if get_token() is None:
        raise UserError(
            "--push needs a token that may write: log in with `hf auth login`, or set HF_TOKEN "
            f"(tokens are made at {constants.ENDPOINT}/settings/tokens)."
        )


def push(folder: Path, files: Iterable[str], repository: str, *, public: bool, message: str) -> str:
    """Upload exactly these files of the folder in one commit; the address of the repository, made if need be.

    Raises UserError if the Hub cannot be reached or refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in files]
    try:
        url = api.create_repo(repository, private=not public, exist_ok=True)
        api.create_commit(str(url.repo_id), operations, commit_message=message)
    except Exception as error:  # of the network; its classes have no common base over versions of the client
        raise _sentence(repository, error) from error
    return str(url)


def _sentence(repository: str, error: Exception) -> UserError:
    from huggingface_hub import constants

    status = getattr(getattr(error, "response", None), "status_code", None)
    said = getattr(error, "server_message", None) or (f"status {status}" if status else error)
    reason = " ".join(str(said).split())[:200].rstrip(".") or type(error).__name__
    if status in (401, 403):
        return UserError(
            f"the Hub refuses to let your token write to {repository} (status {status}): make one with the right to "
            f"write at {constants.ENDPOINT}/settings/tokens, or push under a name of your own."
        )
    if status is not None:
        return UserError(f"the Hub did not take {repository} ({reason}): try again later.")
    return UserError(
        f"the Hub at {constants.ENDPOINT} cannot be reached ({reason}): check the network and try again; the exported "
        "folder is kept."
    )

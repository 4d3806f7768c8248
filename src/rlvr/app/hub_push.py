"""Upload an exported folder to the Hub; one sentence for each way in which that fails."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rlvr.errors import ConfigError, UserError


def check_repository(name: str) -> None:
    """ConfigError unless `name` is an owner and a name, as the Hub takes them."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
        is_valid = name.count("/") == 1
    except HFValidationError:
        is_valid = False
    if not is_valid:
        raise ConfigError(f"--push {name}: is no repository; write owner/name, e.g. ann/rpn-grpo.")


def check_token() -> None:
    """UserError without a token, or offline: found out before anything is merged."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise UserError("--push needs the Hub: unset HF_HUB_OFFLINE.")
    if get_token() is None:
        raise UserError("--push needs a token that may write: log in with `hf auth login`, or set HF_TOKEN.")


def push(folder: Path, files: Iterable[str], repository: str, *, public: bool, message: str) -> str:
    """Upload exactly these files of the folder in one commit; the address of the repository, made if need be.

    Raises UserError if the Hub cannot be reached or refuses.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants

    api = HfApi()
    operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in files]
    try:
        url = api.create_repo(repository, private=not public, exist_ok=True)
        api.create_commit(str(url.repo_id), operations, commit_message=message)
    except Exception as error:  # of the network; its classes have no common base over versions of the client
        status = getattr(getattr(error, "response", None), "status_code", None)
        said = getattr(error, "server_message", None) or (f"status {status}" if status else str(error))
        said = " ".join(said.split())[:200].rstrip(".")
        what = f"the Hub at {constants.ENDPOINT} cannot be reached: check the network; the exported folder is kept"
        if status in (401, 403):
            what = f"the Hub refuses to let your token write to {repository}: make one with that right, or use your own"
        elif status is not None:
            what = f"the Hub did not take {repository}: try again later"
        raise UserError(f"{what} ({said or type(error).__name__}).") from error
    return str(url)

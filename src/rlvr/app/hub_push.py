"""Upload an exported folder to the Hub; one sentence for each way in which that fails."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rlvr.errors import ConfigError, UserError


def check_repository(name: str) -> None:
    """ConfigError unless `name` is an owner and a name, as the Hub takes them."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    with suppress(HFValidationError):
        validate_repo_id(name)
        if name.count("/") == 1:
            return
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
        said = " ".join((getattr(error, "server_message", None) or str(error) or type(error).__name__).split())[:300]
        raise UserError(
            f"the Hub at {constants.ENDPOINT} did not take {repository}: check the network and what your token may "
            f"write; the exported folder is kept ({said.rstrip('.')})."
        ) from error
    return str(url)

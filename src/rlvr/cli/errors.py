"""Errors as one sentence for the terminal."""

from rlvr.cli.streaming import shown
from rlvr.errors import UserError


def sentence(error: UserError | OSError | MemoryError) -> str:
    """One line, control characters spelled out: a UserError as it is, `runs/x: no space left on device.`"""
    text = str(error)
    if isinstance(error, MemoryError):
        text = "out of memory; make the model, the vocabulary or the batch smaller."
    elif isinstance(error, OSError):
        what = f"{error.filename}: " if error.filename is not None else ""
        text = f"{what}{(error.strerror or text or type(error).__name__).lower()}."
    return shown(" ".join(text.split()))

"""Errors as one sentence for the terminal."""

import errno

from rlvr.cli.streaming import shown
from rlvr.errors import UserError

REMEDIES = {
    errno.ENOSPC: "free some space and go on with resume=true",
    errno.EDQUOT: "free some space and go on with resume=true",
    errno.EACCES: "change its permissions or choose another place",
    errno.EPERM: "change its permissions or choose another place",
    errno.EROFS: "choose another place",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file; choose another place",
}


def sentence(error: UserError | OSError) -> str:
    """One line, control characters spelled out.

    A UserError as it is, `[Errno 28] No space left on device: 'runs/x'` with a remedy.
    """
    if isinstance(error, UserError):
        return shown(" ".join(str(error).split()))
    what = f"{error.filename}: " if error.filename is not None else ""
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    remedy = REMEDIES.get(error.errno or 0)
    return shown(" ".join(f"{what}{reason}{f'; {remedy}' if remedy else ''}.".split()))

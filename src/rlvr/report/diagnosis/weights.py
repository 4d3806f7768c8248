"""How far the weights of a run have moved: its first saved ones beside its last."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from rlvr.report.history import History

MAX_TENSORS = 64  # that are compared: more of a large model would take minutes


@dataclass(frozen=True)
class Weights:
    """Of the matrices: `size` is the root mean square of the first ones, `moved` that of their change, `width` the
    median of their smaller sides."""

    size: float
    moved: float | None  # None: only one set of weights is saved
    width: float


def read_weights(folder: Path, history: History) -> Weights | None:
    """None without readable weights: adapters, sharded or damaged files, or types that NumPy lacks."""
    from safetensors import SafetensorError

    named = history.setting("model.name_or_path")
    first = [folder / "warm_start", *([Path(named)] if isinstance(named, str) else [])]
    last = [folder / "final", *sorted(folder.glob("checkpoints/step_*/model"), reverse=True)]
    begin, end = _file(first), _file(last)
    try:
        return None if begin is None else _compare(begin, end)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError):
        return None


def _file(folders: list[Path]) -> Path | None:
    paths = (folder / "model.safetensors" for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def _compare(begin: Path, end: Path | None) -> Weights | None:
    from safetensors import safe_open

    squares, changes, count, widths = 0.0, 0.0, 0, list[int]()
    with safe_open(begin, framework="numpy") as one, safe_open(end or begin, framework="numpy") as other:
        names = [name for name in one.keys() if len(one.get_slice(name).get_shape()) == 2]  # noqa: SIM118
        for name in names[:: max(1, len(names) // MAX_TENSORS)]:
            before, after = one.get_tensor(name).astype(np.float64), other.get_tensor(name).astype(np.float64)
            squares += float(np.square(before).sum())
            changes += float(np.square(after - before).sum())
            count += before.size
            widths.append(min(before.shape))
    if not squares:
        return None
    moved = None if end is None else (changes / count) ** 0.5
    return Weights(size=(squares / count) ** 0.5, moved=moved, width=median(widths))

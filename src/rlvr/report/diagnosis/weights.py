"""How far the weights of a run have moved: its first saved ones beside its last."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np

from rlvr.tracking.history import History

MAX_TENSORS = 64  # that are compared: more of a large model would take minutes


@dataclass(frozen=True)
class Weights:
    """Of the matrices: `size` is the root mean square of the first ones, `moved` that of their change, `width` the
    median of their smaller sides. `still` is the share of the matrices in which no number changed, though others did;
    `fresh` that of the vectors (norms, biases) that are one number throughout, as in a model that was never trained."""

    size: float
    moved: float | None  # None: only one set of weights is saved
    width: float
    still: float | None = None
    fresh: float | None = None


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

    squares, changes, count, widths, same = 0.0, 0.0, 0, list[int](), list[bool]()
    with safe_open(begin, framework="numpy") as one, safe_open(end or begin, framework="numpy") as other:
        shapes = {name: one.get_slice(name).get_shape() for name in one.keys()}  # noqa: SIM118
        names = [name for name, shape in shapes.items() if len(shape) == 2]
        vectors = [name for name, shape in shapes.items() if len(shape) == 1 and shape[0] > 1][:MAX_TENSORS]
        fresh = [bool(np.ptp(one.get_tensor(name)) == 0) for name in vectors]
        moves = any(bool((one.get_tensor(name) != other.get_tensor(name)).any()) for name in vectors)
        for name in names[:: max(1, len(names) // MAX_TENSORS)]:
            before, after = one.get_tensor(name).astype(np.float64), other.get_tensor(name).astype(np.float64)
            squares += float(np.square(before).sum())
            changes += float(np.square(after - before).sum())
            same.append(bool((before == after).all()))
            count += before.size
            widths.append(min(before.shape))
    if not squares:
        return None
    moved = None if end is None else (changes / count) ** 0.5
    return Weights(
        size=(squares / count) ** 0.5,
        moved=moved,
        width=median(widths),
        still=fmean(same) if end is not None and (moves or not all(same)) else None,
        fresh=fmean(fresh) if fresh else None,
    )

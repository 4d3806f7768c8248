"""How many weights a run trains, and how far they have moved: its first saved ones beside its last."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from rlvr.records.history import History

MAX_TENSORS = 64  # that are compared: more of a large model would take minutes
NAMES = ("model.safetensors", "adapter_model.safetensors")


@dataclass(frozen=True, kw_only=True)
class WeightChange:
    """`count` of all that are trained. Of the matrices: `moved` is the root mean square of their change beside that of
    the first ones, `still` the share in which no number changed, though others did. `fresh` is the share of the first
    vectors (norms, biases) that are one number throughout, as in a model that was never trained."""

    count: int
    moved: float | None = None  # None: only one set of weights is saved, or NumPy cannot read them
    still: float | None = None
    fresh: float | None = None


def read_weights(folder: Path, history: History) -> WeightChange | None:
    """None without a readable file of weights in the run: they are sharded, or damaged."""
    from safetensors import SafetensorError

    named = history.setting("model.name_or_path")
    begin = _file([folder / "warm_start", *([Path(named)] if isinstance(named, str) else [])], NAMES[:1])
    end = _file([folder / "final", *sorted(folder.glob("checkpoints/step_*/model"), reverse=True)], NAMES)
    if (trained := end or begin) is None:
        return None
    try:
        count = _count(trained)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if begin is None:
        return WeightChange(count=count)
    try:
        moved, still = _compare(begin, end) if end and end.name == begin.name else (None, None)
        return WeightChange(count=count, moved=moved, still=still, fresh=_fresh(begin))
    except (SafetensorError, OSError, ValueError, TypeError, KeyError):
        return WeightChange(count=count)


def _file(folders: list[Path], names: tuple[str, ...]) -> Path | None:
    paths = (folder / name for folder in folders for name in names)
    return next((path for path in paths if path.is_file()), None)


def _count(path: Path) -> int:
    """Read from the header alone, so that the numbers may have any type."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, path.stat().st_size)))  # a damaged file may name any length
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _fresh(path: Path) -> float | None:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as weights:
        vectors = [name for name in weights.keys() if len(weights.get_slice(name).get_shape()) == 1]  # noqa: SIM118
        tensors = [weights.get_tensor(name) for name in vectors[:MAX_TENSORS]]
    flags = [bool(np.ptp(tensor) == 0) for tensor in tensors if len(tensor) > 1]
    return fmean(flags) if flags else None


def _compare(begin: Path, end: Path) -> tuple[float | None, float | None]:
    """How far the matrices have moved, and the share of them that stand still while anything moves."""
    from safetensors import safe_open

    squares, changes, same = 0.0, 0.0, list[bool]()
    with safe_open(begin, framework="numpy") as first, safe_open(end, framework="numpy") as last:
        shapes = {name: first.get_slice(name).get_shape() for name in first.keys()}  # noqa: SIM118
        names = [name for name, shape in shapes.items() if len(shape) == 2]
        vectors = [name for name, shape in shapes.items() if len(shape) == 1 and shape[0] > 1][:MAX_TENSORS]
        moves = any(bool((first.get_tensor(name) != last.get_tensor(name)).any()) for name in vectors)
        for name in names[:: max(1, len(names) // MAX_TENSORS)]:
            before, after = first.get_tensor(name).astype(np.float64), last.get_tensor(name).astype(np.float64)
            squares += float(np.square(before).sum())
            changes += float(np.square(after - before).sum())
            same.append(bool((before == after).all()))
    moved = math.sqrt(changes / squares) if squares else None
    return moved, fmean(same) if moves or not all(same) else None

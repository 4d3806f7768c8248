from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlvr.config.compose import load_config
from rlvr.core.batch import to_batch
from rlvr.core.errors import NonFiniteError
from rlvr.core.rollout import SampledGroups
from rlvr.errors import UserError
from rlvr.records.jsonl import MetricsFile
from rlvr.records.rollouts import read_rollouts
from rlvr.tracking.console import Console
from rlvr.tracking.episodes import EpisodePrinter, Line
from rlvr.tracking.recorder import FolderRecorder
from rlvr.types import GradedAnswer, Group
from tests.unit.core.test_loop import one_group

GROUPS: tuple[Group, ...] = tuple(one_group(0) for _ in range(3))
ROLLOUTS = SampledGroups(groups=GROUPS, num_refilled=0)


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def recorder(
    folder: Path, *, every: int | None = 10, groups: int | None = None, printer: EpisodePrinter | None = None
) -> FolderRecorder:
    settings = load_config([]).tracker.model_copy(update={"rollouts_every": every, "rollouts_max_groups": groups})
    return FolderRecorder(
        folder=folder,
        metrics_file=MetricsFile(folder / "metrics.jsonl"),
        console=Console("none", 1, 5),
        settings=settings,
        decode=decode,
        printer=printer,
    )


@pytest.mark.parametrize(("every", "steps"), [(10, [1, 10, 20]), (1, list(range(1, 22))), (None, [])])
def test_rollouts_are_written_first_and_every_so_often(every: int | None, steps: list[int], tmp_path: Path) -> None:
    made, batch = recorder(tmp_path, every=every), to_batch(GROUPS)
    for step in range(1, 22):
        made.rollouts(step, ROLLOUTS, batch)
    folder = tmp_path / "rollouts"
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    assert names == [f"step_{step:06d}.jsonl.gz" for step in steps]


def test_a_printer_sees_every_episode_and_the_files_stay(tmp_path: Path) -> None:
    shown: list[Line] = []
    printer = EpisodePrinter(
        print=shown.extend,
        decode=decode,
        weights=lambda group: {},
        grades=lambda group: [GradedAnswer(answer=None, correct=False)] * len(group.episodes),
    )
    made = recorder(tmp_path, every=2, groups=1, printer=printer)
    for step in (1, 2, 3):
        made.rollouts(step, ROLLOUTS, to_batch(GROUPS))
    titles = ["".join(text for text, _ in line) for line in shown if line[0][0].startswith("----")]
    expected = [f"---- step {step}, group {group} of 3," for step in (1, 2, 3) for group in (1, 2, 3)]
    assert [title[: len(expected[0])] for title in titles] == expected
    files = sorted((tmp_path / "rollouts").iterdir())
    assert [len(read_rollouts(file)) for file in files] == [1, 1]


def test_a_batch_whose_loss_is_not_finite_is_kept_with_its_name(tmp_path: Path) -> None:
    columns = {"teacher": torch.full((3, 4), -1.0)}
    batch = replace(to_batch(GROUPS), advantages=torch.full((3, 4), float("nan")), columns=columns)
    error = recorder(tmp_path).non_finite(12, batch, NonFiniteError("the loss", [1, 2]))
    path = tmp_path / "non_finite" / "step_000012.safetensors"
    assert isinstance(error, UserError)
    said = str(error)
    assert all(part in said for part in ("the loss of step 12 is not finite", str(path), "rows 1, 2"))
    assert all(remedy in said for remedy in ("trainer.learning_rate", "start another run"))
    kept = load_file(path)
    assert torch.equal(kept["ids"], batch.ids)
    assert torch.equal(kept["teacher"], columns["teacher"])
    assert kept["advantages"].isnan().all()
    assert "values" not in kept  # the algorithm had none

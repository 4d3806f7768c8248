"""Every file operation of a run is a crash point: it is killed there, resumed, and every byte compared.

    python -m tests.system.crash_points --points 300

A process counts its file operations below a folder: opening for writing, writing, syncing, renaming, removing, making
folders. It kills itself with SIGKILL before the n-th. `--points` are spread evenly over those of three recipes.
"""

import argparse
import builtins
import io
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.system.harness import SCRATCH, SMALL, Command, numbers, once

EVERY = ("trainer.max_steps=3", "trainer.checkpoint_every=1", "trainer.keep_last=2", "evaluation.every=2")
RECIPES: dict[str, tuple[str, ...]] = {
    "warm start and GRPO": (*SMALL, *SCRATCH, *EVERY),
    "PPO without the cache": (
        *(*SMALL, *SCRATCH, *EVERY, "warm_start.cache=false", "warm_start.num_steps=30", "algorithm=ppo"),
        *("rollout.prompts_per_step=16", "rollout.group_size=1"),
    ),
    "DAPO, all checkpoints": (*SMALL, *SCRATCH, *EVERY, "algorithm=dapo", "trainer.keep_last=9"),
}
AUDITED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
NOT_COMPARED = (".lock", "report.html", "metrics.jsonl", "starts.jsonl", "manifest.json", "state.json")
"""Times and the process's number; metrics are compared without times, state.json without the state of Python's own
generator, which nobody seeds, and the manifest has the sums of the others."""


@dataclass
class Counter:
    """Counts file operations below `root`, and kills the process before operation `last`; None: never. Their number is
    written to `report` at each."""

    root: str
    last: int | None
    report: int  # a file descriptor
    made: int = 0

    def point(self, path: object) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)) or not os.fsdecode(path).startswith(self.root):
            return
        self.made += 1
        os.pwrite(self.report, str(self.made).encode(), 0)
        if self.made == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in AUDITED or (event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE):
            self.point(arguments[0])

    def install(self) -> None:
        counter, real_open, real_sync = self, io.open, os.fsync

        class Writer(io.BufferedWriter):
            def write(self, data: Any, /) -> int:
                counter.point(self.name)
                return super().write(data)

        def opened(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
            if "b" in mode and mode[0] in "wax" and "+" not in mode and not more and not options:
                return Writer(io.FileIO(file, mode.replace("b", "")))
            return real_open(file, mode, *more, **options)

        def synced(number: Any) -> None:
            counter.point(self.root)
            real_sync(number)

        io.open = builtins.open = opened  # type: ignore[assignment]
        os.fsync = synced
        sys.addaudithook(self.audit)


def count_and_die(root: str, last: int | None, report: str) -> None:
    Counter(root, last, os.open(report, os.O_WRONLY | os.O_CREAT)).install()


def killed_at(folder: Path, words: tuple[str, ...], last: int | None, environment: Mapping[str, str]) -> int:
    """Run the recipe in `folder`, killed before operation `last`; returns how many were made."""
    report = folder.with_name(f"{folder.name}.count")
    prepare = partial(count_and_die, str(folder.parent), last, str(report))
    log = folder.with_name(f"{folder.name}.log")
    command = Command("train", *words, f"run_dir={folder}", log=log, prepare=prepare, environment=environment)
    code = command.wait(300.0)
    assert code == (0 if last is None else -signal.SIGKILL), (last, code, command.err)
    return int(report.read_text())


def contents(folder: Path) -> dict[str, object]:
    """Every byte of a finished run that must be equal."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    kept: dict[str, object] = {name: path.read_bytes() for name, path in files.items() if path.name not in NOT_COMPARED}
    kept.pop("warm_start.jsonl", None)  # none if its weights came from the cache
    kept |= {name: state_of(path) for name, path in files.items() if path.name == "state.json"}
    return {**kept, "metrics": numbers(folder), "starts": (folder / "starts.jsonl").exists()}


def state_of(path: Path) -> str:
    """Of a checkpoint, as JSON, without what `random.getstate()` gave."""
    state = json.loads(path.read_text())
    for name, tree in state["structure"]["dict"]:
        if name == "random":
            tree["dict"] = [pair for pair in tree["dict"] if pair[0] != "python"]
    return json.dumps(state, sort_keys=True)


def check(words: tuple[str, ...], whole: Path, place: Path, last: int) -> None:
    """Kill a run before operation `last`, go on, and compare it with the uninterrupted one."""
    environment = {"XDG_CACHE_HOME": str(place / "cache")}
    folder = place / "run"
    killed_at(folder, words, last, environment)
    resume = ("resume=true",) if (folder / "config.yaml").is_file() else ()
    command = Command("train", *words, *resume, f"run_dir={folder}", log=place / "log", environment=environment)
    assert command.wait(300.0) == 0, (last, command.err)
    found, wanted = contents(folder), contents(whole)
    assert list(found) == list(wanted), (last, set(found) ^ set(wanted))
    different = [name for name in wanted if found[name] != wanted[name]]
    assert not different, (last, different)


def spread(count: int, points: int) -> list[int]:
    """`points` numbers from 1 to `count`, evenly."""
    return sorted({1 + round(n * (count - 1) / max(1, points - 1)) for n in range(points)})


def uninterrupted(words: tuple[str, ...], place: Path) -> tuple[Path, int]:
    """A whole run, and how many operations it makes."""
    place.mkdir(parents=True)
    environment = {"XDG_CACHE_HOME": str(place / "cache")}
    return place / "run", killed_at(place / "run", words, None, environment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=300, help="over these recipes")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    arguments = parser.parse_args()
    print("| recipe | file operations | killed at | different |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as root:
        for number, name in enumerate(arguments.recipes):
            words = tuple(once(*RECIPES[name]))
            whole, count = uninterrupted(words, Path(root, str(number)))
            wrong = list[int]()
            points = spread(count, -(-arguments.points // len(arguments.recipes)))
            for last in points:
                place = Path(root, f"{number}-{last}")
                place.mkdir()
                try:
                    check(words, whole, place, last)
                except AssertionError as error:
                    wrong.append(last)
                    print(f"{name}, operation {last}: {error}", file=sys.stderr, flush=True)
                shutil.rmtree(place)
            print(f"| {name} | {count} | {len(points)} | {len(wrong)} |", flush=True)


if __name__ == "__main__":
    main()

"""`rlvr diagnose` on runs with planted faults and on sound ones.

    python benchmarks/faults/diagnose.py --root runs/diagnose --recipe rpn two_hop
    RLVR_DATA=data python benchmarks/faults/diagnose.py --root runs/diagnose --only "reward always 0" --try

A run is rightly named if the link that is named is one of the planted fault's, or a judge of such a link. Runs that
`rlvr train` refuses, and those whose held-out metric rises all the same, are set aside: there is nothing to explain.
Runs start from warm-started models of their recipe and stay in --root; what is there is not made again, so a killed
script goes on.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from of_training import FAULTS, RECIPES, Plant, Recipe
from table import Fault, Verdict, parser_of, run

import rlvr
from rlvr.cli.main import main as command

ROSE = 0.5  # of what a run learned; from here on a curve is not flat
LINK_OF = {
    "untrained": "read",
    "never_paid": "paid",
    "other_gold": "paid",
    "tools_fail": "read",
    "paid_for_length": "paid",
    "unlike_held_out": "held",
}
NUM_WARM = 2  # warm-started models of a recipe, shared by the seeds


def table(recipes: Sequence[str], seeds: int) -> Iterator[Fault]:
    for recipe in recipes:
        sound = [(f"sound: {words or 'unchanged'}", "", Plant(words=lambda _, words=words: words), 1)
                 for words in RECIPES[recipe].sound]  # fmt: skip
        for seed in range(1, seeds + 1):
            for name, right, plant, invented in [*FAULTS, *sound]:
                if plant.suits(RECIPES[recipe]):
                    kind, right_names = (recipe, tuple(right.split("|"))) if right else ("sound", ())
                    yield Fault(f"{name} ({recipe}, {seed})", kind, right_names, (recipe, plant, seed), str(invented))


def train(recipe: Recipe, words: str, folder: Path) -> str:
    """Run `rlvr train`, where of each key the last word counts. Returns why it was refused, or nothing."""
    lines = dict(word.split("=", 1) for word in f"{recipe.words} {words} tracker.console=none".split())
    arguments = [f"{key}={value}" for key, value in lines.items()]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
        code = command(["train", "--config-name", recipe.config, *arguments, f"run_dir={folder}"])
    return said.getvalue() or f"exit status {code}" if code else ""


def warm(root: Path, recipe: Recipe, seed: int) -> Path:
    """The recipe's model after its warm start."""
    folder = root / "warm" / f"{recipe.config}-{seed}"
    if not (folder / "final").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        if refusal := train(recipe, f"seed={seed} trainer.max_steps=0", folder):
            raise SystemExit(refusal)
    return folder / "warm_start"


def made(root: Path, fault: Fault) -> Path:
    """The fault's run, unless it is there."""
    name, plant, seed = fault.made
    recipe, folder = RECIPES[name], root / "runs" / re.sub(r"\W+", "_", fault.name)
    if (folder / "final").is_dir() or (folder / "failed").is_file():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    model = warm(root, recipe, (seed - 1) % NUM_WARM + 1)
    if (change := plant.model(recipe)) is not None:
        copy = root / "models" / folder.name
        shutil.copytree(model, copy, dirs_exist_ok=True)
        change(copy)
        model = copy
    start = f"model=hf model.name_or_path={model} trainer.learning_rate={recipe.learning_rate:g}"
    random.seed(seed)
    with plant.around(recipe):
        refusal = train(recipe, f"{start} {plant.words(recipe)} seed={seed}", folder)
    if refusal:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failed").write_text(refusal)
    return folder


def judged(root: Path, fault: Fault, arguments: argparse.Namespace) -> Verdict:
    folder = made(root, fault)
    if (folder / "failed").is_file():
        return Verdict(aside=f"refused: {(folder / 'failed').read_text().strip()[-120:]}")
    diagnosis, plant = rlvr.diagnose(folder), fault.made[1]
    named = (LINK_OF.get(diagnosis.top.name, diagnosis.top.name),) if diagnosis.top else ()
    rose = diagnosis.learned >= ROSE
    says = " (rose)" if rose and named else ""
    if arguments.attempt and plant.in_settings and set(named) & set(fault.right):
        with plant.around(RECIPES[fault.made[0]]):
            trial = rlvr.diagnose(folder, try_steps=10).trial
        says += f" ({' '.join(trial.overrides)}: {'moves' if trial.moved else 'does not move'})" if trial else ""
    return Verdict(named, says, "the curve rose" if rose and fault.right and not named else "")


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--root", type=Path, default=Path("runs/diagnose"), help="runs are kept here")
    parser.add_argument("--recipe", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=1, help="runs of each fault")
    parser.add_argument("--try", dest="attempt", action="store_true", help="try remedies that are settings, too")
    arguments = parser.parse_args()
    root = arguments.root.absolute()
    run(list(table(arguments.recipe, arguments.seeds)), arguments, lambda fault: judged(root, fault, arguments))


if __name__ == "__main__":
    main()

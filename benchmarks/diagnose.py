"""`rlvr diagnose` on runs with planted faults, and on healthy ones.

RLVR_DATA=data python benchmarks/diagnose.py --root FOLDER make --recipe rpn --seeds 1 2
"""

import argparse
import random
import shutil
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from diagnose_faults import FAULTS, HEALTHY, RECIPES, damaged

from rlvr.commands.train.body import train
from rlvr.config.compose import load_config
from rlvr.errors import UserError

QUIET = ("tracker.console=none",)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def warm(root: Path, name: str, seed: int) -> Path:
    """The recipe's model after its warm start."""
    folder = root / "warm" / f"{name}-{seed}"
    if not (folder / "final").is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        recipe = RECIPES[name]
        overrides = [*QUIET, *recipe.overrides, f"seed={seed}", "trainer.max_steps=0", f"run_dir={folder}"]
        train(load_config([*overrides, "evaluation.every=null"], config_name=recipe.config))
    return folder / "warm_start"


def overrides_of(name: str, fault: str, model: Path) -> list[str]:
    """`fault`: a name of `FAULTS`, or `healthy 3`, the third sound variant."""
    recipe = RECIPES[name]
    start = ("model=hf", f"model.name_or_path={model}", f"trainer.learning_rate={recipe.learning_rate:g}")
    if fault.startswith("healthy"):
        changed = tuple(HEALTHY[name][int(fault.split()[1]) - 1].split())
    else:
        changed = FAULTS[fault].overrides(recipe)
    lines = dict(line.split("=", 1) for line in (*QUIET, *recipe.overrides, *start, *changed))  # the last one counts
    return [f"{key}={value}" for key, value in lines.items()]


def make(root: Path, name: str, fault: str, seed: int, num_warm: int) -> None:
    """A run with a fault, unless it is there."""
    folder = root / "runs" / f"{name}-{fault.replace(' ', '_')}-{seed}"
    if (folder / "final").is_dir() or (folder / "failed").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    begin, planted = time.process_time(), FAULTS.get(fault)
    model = warm(root, name, (seed - 1) % num_warm + 1)
    if planted is not None:
        model = damaged(planted, RECIPES[name], model, root / "models" / folder.name)
    random.seed(seed)
    try:
        with planted.around() if planted else nullcontext():
            train(load_config([*overrides_of(name, fault, model), f"seed={seed}", f"run_dir={folder}"],
                              config_name=RECIPES[name].config))  # fmt: skip
    except UserError as error:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failed").write_text(str(error))
        say(f"{folder.name}: {error}")
    say(f"{folder.name}: {time.process_time() - begin:.0f} CPU seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--recipe", nargs="+", default=list(RECIPES))
    parser.add_argument("--fault", nargs="+", default=list(FAULTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--num-warm", type=int, default=1)
    arguments = parser.parse_args()
    for seed in arguments.seeds:
        for name in arguments.recipe:
            healthy = [f"healthy {number}" for number in range(1, len(HEALTHY[name]) + 1)]
            for fault in healthy if arguments.fault == ["healthy"] else arguments.fault:
                make(arguments.root.absolute(), name, fault, seed, arguments.num_warm)


if __name__ == "__main__":
    main()

"""`rlvr replay`: steps made once more, and the influence of episodes beside updates that are really made without them.

    RLVR_DATA=data python benchmarks/replay_steps.py > benchmarks/results/replay.md

Six recipes are trained for a few steps with a checkpoint every five and every episode recorded. Of each, random steps
are replayed. Then, for random steps of some, the update is made without one episode, for random episodes, and the
change of the batch's loss is compared with the predicted one: Spearman's correlation. The loss is the run's own, with
ratios to the policy before the update. `own gradient . gradient` and `own gradient . change of the weights` are the
usual choices, for comparison.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np
from scipy.stats import rankdata

from rlvr.commands.replay.body import replay
from rlvr.commands.train.body import train
from rlvr.config.compose import load_config
from rlvr.core.batch import to_batch
from rlvr.research import influence
from rlvr.research.influence import influences, left_out
from rlvr.research.repeat import Repeated, find_step, repeated
from rlvr.run.sources import own_config

SHORT = (
    "trainer.checkpoint_every=5",
    "trainer.keep_last=100",
    "tracker.rollouts_every=1",
    "tracker.rollouts_max_groups=null",
    "tracker.console=none",
    "evaluation.every=5",
    "evaluation.num_examples=16",
)
ADAPTED = ("model=hf", "model.name_or_path=rpn/warm_start", "model.lora.enabled=true", "trainer.learning_rate=2e-3")
RECIPES = {
    "rpn": ("rpn", "trainer.max_steps=20"),
    "rpn_ppo": ("rpn_ppo", "trainer.max_steps=15"),
    "two_hop": ("two_hop", "trainer.max_steps=20"),
    "gsm8k_smoke": ("gsm8k_smoke", "trainer.max_steps=15"),
    "musique_smoke": ("musique_smoke", "trainer.max_steps=15"),
    "rpn, LoRA, DAPO, KL": ("rpn", "trainer.max_steps=15", "algorithm=dapo", "algorithm.kl_coef=0.02", *ADAPTED),
}
WITHOUT_ONE = ("rpn", "two_hop", "gsm8k_smoke", "rpn_ppo")


def trained(root: Path, recipe: str, seed: int) -> Path:
    name, *overrides = RECIPES[recipe]
    folder = root / recipe.replace(", ", "_").lower()
    overrides = [line.replace("rpn/warm_start", str(root / "rpn/warm_start")) for line in overrides]
    begin = time.perf_counter()
    train(load_config([*SHORT, *overrides, f"seed={seed}", f"run_dir={folder}"], config_name=name))
    say(f"{recipe}: trained in {time.perf_counter() - begin:.0f} s")
    return folder


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def repeat(recipe: str, folder: Path, steps: list[int]) -> str:
    """A row about these steps of a run, made once more."""
    equal, tokens, num_metrics, seconds = 0, 0, 0, list[float]()
    for step in steps:
        begin = time.perf_counter()
        found = replay(str(folder), step)
        seconds.append(time.perf_counter() - begin)
        equal += found.equal and found.num_recorded == found.num_episodes
        tokens, num_metrics = tokens + found.num_recorded, found.num_metrics
        say(f"{recipe}, step {step}: {'equal' if found.equal else found.differences[0]}")
    return f"| {recipe} | {equal} of {len(steps)} | {tokens:,} | {num_metrics} | {median(seconds):.1f} |"


@contextmanager
def other_direction(kind: str) -> Iterator[None]:
    """Dot products with something else than the product does."""

    def change(trainer, before, gradients, slope):  # type: ignore[no-untyped-def]
        moved = {name: before.weights[name] - p.detach() for name, p in trainer.policy.named_parameters()}
        return [moved for _ in gradients]

    kinds = {"gradient": lambda trainer, before, gradients, slope: gradients, "change": change}
    with patch.object(influence, "directions", kinds.get(kind, influence.directions)):
        yield


def without_each(made: Repeated, numbers: list[int]) -> list[float]:
    """Change of the batch's loss if the update is really made without each episode."""
    trainer, objective = made.run.trainer, made.run.objective
    samples = to_batch(made.sampled.groups)
    made.before.restore(trainer, made.step)
    batch = objective.advantages(trainer.score(samples))
    batch = batch.with_columns(old_logprobs=trainer.predict(trainer.policy, samples).logprobs)
    again = objective.algorithm.model_copy(update={"num_epochs": objective.algorithm.num_epochs + 1})
    judge, weights = replace(objective, algorithm=again), objective.loss_weights(batch)

    def loss_after(changed):  # type: ignore[no-untyped-def]
        made.before.restore(trainer, made.step)
        trainer.update(objective.advantages(trainer.score(changed)), made.step - 1)
        return judge.loss(batch, weights, trainer.predict(trainer.policy, samples)).loss.double().item()

    whole = loss_after(samples)
    return [loss_after(left_out(samples, number)) - whole for number in numbers]


def correlations(recipe: str, folder: Path, step: int, num_episodes: int, draw: random.Random) -> list[float]:
    """Spearman's correlation of the product's influence, and of the two other choices."""
    config = own_config(str(folder))
    assert config is not None
    found = dict[str, list[float]]()
    with repeated(config, find_step(folder, step), {}, lambda done, total: None) as made:
        for kind in ("own", "gradient", "change"):
            with other_direction(kind):
                found[kind] = [one.change for one in influences(made, lambda done, total: None)]
        numbers = draw.sample(range(len(found["own"])), min(num_episodes, len(found["own"])))
        truth = without_each(made, numbers)
    columns = [[values[n] for n in numbers] for values in found.values()]
    rhos = [float(np.corrcoef(rankdata(one), rankdata(truth))[0, 1]) for one in columns]
    say(f"{recipe}, step {step}: {rhos}")
    return rhos


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100, help="replayed steps, over all recipes")
    parser.add_argument("--updates", type=int, default=4, help="steps of a recipe with updates without one episode")
    parser.add_argument("--episodes", type=int, default=48, help="of such a step")
    parser.add_argument("--root", help="keep the runs here")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with ExitStack() as stack:
        root = Path(arguments.root or stack.enter_context(tempfile.TemporaryDirectory()))
        folders = {recipe: trained(root, recipe, arguments.seed) for recipe in RECIPES}
        rows, equal = list[str](), 0
        for number, (recipe, folder) in enumerate(folders.items()):
            last = int(next(line for line in RECIPES[recipe] if "max_steps" in line).partition("=")[2])
            share = arguments.steps // len(RECIPES) + (number < arguments.steps % len(RECIPES))
            steps = sorted(draw.choices(range(1, last + 1), k=share))
            rows.append(repeat(recipe, folder, steps))
            equal += int(rows[-1].split("|")[2].split(" of ")[0])
        measured = list[str]()
        for recipe in WITHOUT_ONE:
            for step in sorted(draw.sample(range(2, 16), arguments.updates)):
                own, gradient, change = correlations(recipe, folders[recipe], step, arguments.episodes, draw)
                measured.append(f"| {recipe} | {step} | **{own:.2f}** | {gradient:.2f} | {change:.2f} |")
    print(PAGE.format(equal=equal, steps=arguments.steps, seed=arguments.seed, date=date.today().isoformat(),
                      rows="\n".join(rows), measured="\n".join(measured), episodes=arguments.episodes))  # fmt: skip


PAGE = """# Replayed steps, and the influence of episodes

    RLVR_DATA=data OMP_NUM_THREADS=1 python benchmarks/replay_steps.py > benchmarks/results/replay.md

{date}, one core of an AMD EPYC that other work shared, seed {seed} of the runs and of the choices.

## {equal} of {steps} random steps are equal

Every byte of the step's line of metrics.jsonl (times aside) and of its rollout file, which has all episodes. There is a
checkpoint every five steps; the first steps start from the warm start. Seconds include loading.

| recipe | equal | episodes | metrics | seconds, median |
|---|---|---|---|---|
{rows}

## Influence beside real updates without the episode

The change of the batch's loss if the update is made without an episode, predicted and measured, over {episodes} random
episodes of a step: Spearman's correlation. `slope after` is what `--influence` prints: the slope of the loss after the
update, taken back through Adam and the clip. `gradient`: dot product with the update's own gradient (TracIn,
arXiv:2002.08484). `change`: with the change of the weights.

| recipe | step | slope after | gradient | change |
|---|---|---|---|---|
{measured}"""

if __name__ == "__main__":
    main()

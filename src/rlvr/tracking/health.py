"""Plain sentences for a person whose curve is flat: which signal looks wrong, and what to look at first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Metrics = Mapping[str, float]
WINDOW = 5  # a signal has to look wrong for so many steps in a row: one bad step is noise


@dataclass(frozen=True, kw_only=True, slots=True)
class Hint:
    """`Hint(key="truncated", text="...")`: `key` names the signal, so that each can be said once."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class _Rule:
    """`wrong` is asked about one number of each of the last `WINDOW` steps; a step without the number is not wrong."""

    key: str
    metric: str
    wrong: Callable[[float], bool]
    text: str
    unless_solved: bool = False
    unless: Callable[[Metrics], bool] = lambda metrics: False


def _trains(metrics: Metrics) -> bool:
    """Whether most sampled tokens were trained on: critics and batch-wide baselines learn from equal groups, too."""
    sampled = metrics.get("rollout/episodes", 0.0) * metrics.get("rollout/completion_tokens_mean", 0.0)
    return metrics.get("policy/trained_tokens", 0.0) > 0.5 * sampled


_RULES = (
    _Rule(
        "no_reward", "reward/mean", lambda x: x == 0,
        "Every reward of the last 5 steps is 0: there is nothing to learn from. "
        "Look at what the model writes (rollouts/), then make the task easier or warm-start longer.",
    ),
    _Rule(
        "no_signal", "rollout/zero_advantage_share", lambda x: x > 0.9,
        "Over 90 % of the groups had equal rewards in each of the last 5 steps, so almost nothing is learned. "
        "Mix easier and harder examples, raise rollout.group_size, or sample at a higher temperature.",
        unless_solved=True, unless=_trains,
    ),
    _Rule(
        "truncated", "rollout/truncated_share", lambda x: x > 0.5,
        "Over half of the completions were cut off in each of the last 5 steps: they end before their answer. "
        "Raise rollout.max_completion_tokens, or check that the model can produce its stop token.",
    ),
    _Rule(
        "invalid", "rollout/invalid_share", lambda x: x > 0.9,
        "Over 90 % of the answers could not be read in each of the last 5 steps. Look at a few completions in "
        "rollouts/: the model does not know the answer format, or the prompt does not ask for it.",
    ),
    _Rule(
        "errors", "rollout/error_share", lambda x: x > 0.1,
        "The verifier itself failed on over 10 % of the episodes in each of the last 5 steps; they are left out of "
        "training. rollouts/ shows which (score_status: error).",
    ),
    _Rule(
        "collapse", "policy/entropy", lambda x: x < 0.005,
        "The policy's entropy is almost 0: all completions of an example are alike and exploration is over. "
        "Lower trainer.learning_rate, or raise algorithm.entropy_coef.",
        unless_solved=True,
    ),
    _Rule(
        "clipped", "policy/clip_fraction", lambda x: x > 0.3,
        "Over 30 % of the tokens were clipped in each of the last 5 steps: updates are too large. "
        "Lower trainer.learning_rate, or use fewer epochs or minibatches per batch.",
    ),
    _Rule(
        "mismatch", "policy/mismatch_kl", lambda x: x > 0.05,
        "Sampler and trainer disagree about the same tokens (policy/mismatch_kl over 0.05): gradients are biased. "
        "Set algorithm.mismatch_correction=truncate, and use the same precision on both sides.",
    ),
    _Rule(
        "no_gradient", "policy/grad_norm", lambda x: x == 0,
        "The gradient was exactly 0 for the last 5 steps: the weights do not change.",
        unless_solved=True,
    ),
    _Rule(
        "rounding", "policy/changed_weight_share", lambda x: x < 0.01,
        "Less than 1 % of the weights changed in each of the last 5 steps: updates are lost in rounding. "
        "Keep the weights in float32 or raise trainer.learning_rate.",
        unless_solved=True,
    ),
)  # fmt: skip


def hints(history: Sequence[Metrics]) -> list[Hint]:
    """What looks wrong in the metrics so far, oldest first; the last `WINDOW` steps and all evaluations count."""
    solved = _solved(history)
    updates = [metrics for metrics in history if "reward/mean" in metrics]  # the line of step 0 only evaluates
    recent = updates[-WINDOW:]
    found = [
        Hint(key=rule.key, text=rule.text)
        for rule in _RULES
        if not (rule.unless_solved and solved) and _wrong_throughout(rule, recent)
    ]
    return found + _gamed(history) + _got_worse(history)


def _wrong_throughout(rule: _Rule, recent: Sequence[Metrics]) -> bool:
    wrong = [rule.metric in m and rule.wrong(m[rule.metric]) and not rule.unless(m) for m in recent]
    return len(wrong) == WINDOW and all(wrong)


def _accuracies(metrics: Metrics, end: str) -> dict[str, float]:
    """`eval/<task>/<end>` by task."""
    names = [name.split("/") for name in metrics]
    return {n[1]: metrics["/".join(n)] for n in names if len(n) == 3 and n[0] == "eval" and n[2] == end}


def _solved(history: Sequence[Metrics]) -> bool:
    """Whether the last evaluation was so good that little is left to learn."""
    latest = next((found for m in reversed(history) if (found := _accuracies(m, "accuracy"))), {})
    return bool(latest) and min(latest.values()) >= 0.9


def _gamed(history: Sequence[Metrics]) -> list[Hint]:
    """One hint a task whose reward went up since its best evaluation, while its accuracy fell by more than chance."""
    found = []
    for task in sorted({task for metrics in history for task in _accuracies(metrics, "accuracy")}):
        rows = [m for m in history if task in _accuracies(m, "accuracy") and f"eval/{task}/reward" in m]
        if not rows:
            continue
        best, last = max(rows, key=lambda m: m[f"eval/{task}/accuracy"]), rows[-1]
        fell = last[f"eval/{task}/accuracy_high"] < best[f"eval/{task}/accuracy_low"]
        if fell and last[f"eval/{task}/reward"] > best[f"eval/{task}/reward"]:
            text = (
                f"Reward rises while held-out accuracy falls on {task}, by more than chance: it is being gamed. "
                "Read the newest rollouts/, and give the parts of the reward that are not the answer less weight; "
                "the checkpoint with the best accuracy is kept (trainer.keep_best)."
            )
            found.append(Hint(key=f"gamed/{task}", text=text))
    return found


def _got_worse(history: Sequence[Metrics]) -> list[Hint]:
    """One hint a task whose last evaluation lies below the first by more than chance explains."""
    lows = [_accuracies(m, "accuracy_low") for m in history]
    highs = [_accuracies(m, "accuracy_high") for m in history]
    found = []
    for task in sorted({task for low in lows for task in low}):
        first = next(low[task] for low in lows if task in low)
        last = next((high[task] for high in reversed(highs) if task in high), first)
        if last < first:
            text = (
                f"Held-out accuracy on {task} is now lower than before training, by more than chance. "
                "Lower trainer.learning_rate, and compare the reward with the metric: the reward may be gamed."
            )
            found.append(Hint(key=f"worse/{task}", text=text))
    return found

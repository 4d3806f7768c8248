"""Plain sentences for a person whose curve is flat: which signal looks wrong, and what to look at first."""

from collections.abc import Callable, Collection, Mapping, Sequence
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
    """`wrong` is asked about one number of each of the last steps; a step without the number is not wrong."""

    key: str
    metric: str
    wrong: Callable[[float], bool]
    text: str
    unless_solved: bool = False
    unless: Callable[[Metrics], bool] = lambda metrics: False

    def found(self, metrics: Metrics) -> bool:
        return self.metric in metrics and self.wrong(metrics[self.metric]) and not self.unless(metrics)


def _above(share: float, *names: str) -> Callable[[Metrics], bool]:
    """Whether another number says more: two sentences about one thing are one too many."""
    return lambda metrics: any(metrics.get(name, 0.0) > share for name in names)


def _learns_or_is_nothing(metrics: Metrics) -> bool:
    """Whether most sampled tokens were trained on, or no reward was given at all, which has a sentence of its own.

    Critics and batch-wide baselines learn from equal groups, too.
    """
    if metrics.get("reward/mean") == 0:
        return True
    sampled = metrics.get("rollout/episodes", 0.0) * metrics.get("rollout/completion_tokens_mean", 0.0)
    return metrics.get("policy/trained_tokens", 0.0) > 0.5 * sampled


_RULES = (  # causes before what they cause
    _Rule(
        "truncated", "rollout/truncated_share", lambda x: x > 0.5,
        "Over half of the completions were cut off in {steps} (rollout/truncated_share): they end before their answer. "
        "Raise rollout.max_completion_tokens, or check that the model can produce its stop token.",
    ),
    _Rule(
        "errors", "rollout/error_share", lambda x: x > 0.1,
        "The verifier itself failed on over 10 % of the episodes in {steps} (rollout/error_share); they are left out "
        "of training. rollouts/ shows which (score_status: error).",
    ),
    _Rule(
        "invalid", "rollout/invalid_share", lambda x: x > 0.9,
        "Over 90 % of the answers could not be read in {steps} (rollout/invalid_share). Look at a few completions in "
        "rollouts/: the model does not know the answer format, or the prompt does not ask for it.",
        unless=_above(0.5, "rollout/truncated_share"),
    ),
    _Rule(
        "no_reward", "reward/mean", lambda x: x == 0,
        "Every reward was 0 in {steps} (reward/mean): there is nothing to learn from. "
        "Look at what the model writes (rollouts/), then make the task easier or warm-start longer.",
    ),
    _Rule(
        "no_signal", "rollout/zero_advantage_share", lambda x: x > 0.9,
        "Over 90 % of the groups had equal rewards in {steps} (rollout/zero_advantage_share), so almost nothing is "
        "learned. Mix easier and harder examples, raise rollout.group_size, or sample at a higher temperature.",
        unless_solved=True, unless=_learns_or_is_nothing,
    ),
    _Rule(
        "collapse", "policy/entropy", lambda x: x < 0.005,
        "The policy's entropy (policy/entropy) is almost 0: all completions of an example are alike and exploration is "
        "over. Lower trainer.learning_rate, or raise algorithm.entropy_coef.",
        unless_solved=True,
    ),
    _Rule(
        "clipped", "policy/clip_fraction", lambda x: x > 0.3,
        "Over 30 % of the tokens were clipped in {steps} (policy/clip_fraction): updates are too large. "
        "Lower trainer.learning_rate, or use fewer epochs or minibatches per batch.",
    ),
    _Rule(
        "mismatch", "policy/mismatch_kl", lambda x: x > 0.05,
        "Sampler and trainer disagree about the same tokens (policy/mismatch_kl over 0.05): gradients are biased. "
        "Set algorithm.mismatch_correction=truncate, use the same precision on both sides, and lower "
        "rollout.max_staleness where it is above 0.",
    ),
    _Rule(
        "capped", "policy/mismatch_capped", lambda x: x > 0.3,
        "Over 30 % of the trained tokens had a mismatch weight beyond algorithm.mismatch_cap in {steps} "
        "(policy/mismatch_capped). Lower rollout.max_staleness, or weigh tokens instead of sequences "
        "(algorithm.mismatch_correction=truncate).",
        unless=_above(0.05, "policy/mismatch_kl"),
    ),
    _Rule(
        "weighted_away", "policy/mismatch_weight", lambda x: x < 0.3,
        "The mean weight of the mismatch correction was below 0.3 in {steps} (policy/mismatch_weight): most of the "
        "batch counts for little. Products over long completions vanish: set algorithm.mismatch_correction=truncate.",
        unless=_above(0.05, "policy/mismatch_kl"),
    ),
    _Rule(
        "no_gradient", "policy/grad_norm", lambda x: x == 0,
        "The gradient (policy/grad_norm) was exactly 0 in {steps}: the weights do not change. "
        "Look at the advantages in rollouts/: all 0 means that everything is masked.",
        unless_solved=True, unless=_above(0.9, "rollout/zero_advantage_share"),
    ),
    _Rule(
        "tiny_gradient", "policy/grad_norm", lambda x: 0 < x < 1e-5,
        "The gradient norm (policy/grad_norm) was below 0.00001 in {steps}: steps are too small to see. "
        "Look at the advantages and at policy/trained_token_share, and check the weights of the reward's parts.",
        unless_solved=True,
    ),
    _Rule(
        "rounding", "policy/changed_weight_share", lambda x: x < 0.01,
        "Less than 1 % of the weights changed in {steps} (policy/changed_weight_share): updates are lost in rounding. "
        "Keep the weights in float32 or raise trainer.learning_rate.",
        unless_solved=True, unless=lambda metrics: metrics.get("policy/grad_norm") == 0,
    ),
    _Rule(
        "empty_masks", "rollout/empty_mask_share", lambda x: x > 0.05,
        "Over 5 % of the episodes had no token to train on in {steps} (rollout/empty_mask_share): nothing was sampled. "
        "Look at stop_reason and completion_ids in rollouts/: requests were given up, or prompts fill the context.",
    ),
    _Rule(
        "few_trained", "policy/trained_token_share", lambda x: x < 0.05,
        "Less than 5 % of the sampled tokens were trained on in {steps} (policy/trained_token_share), though rewards "
        "differ within groups. Look at loss_mask and advantages in rollouts/, and at algorithm.truncated.",
        unless_solved=True, unless=_above(0.9, "rollout/zero_advantage_share"),
    ),
    _Rule(
        "malformed_calls", "rollout/malformed_call_share", lambda x: x > 0.3,
        "Over 30 % of the tool calls could not be read in {steps} (rollout/malformed_call_share). Look at the problem "
        "of each call in rollouts/, and check that prompt.tool_format is what the model was trained on.",
    ),
    _Rule(
        "unknown_tools", "rollout/unknown_tool_share", lambda x: x > 0.3,
        "Over 30 % of the tool calls named no tool that there is in {steps} (rollout/unknown_tool_share). Look at the "
        "prompt in rollouts/: are the tools in it, and under the names that the model uses?",
    ),
    _Rule(
        "tool_timeouts", "rollout/tool_timeout_share", lambda x: x > 0.1,
        "Over 10 % of the tool calls timed out in {steps} (rollout/tool_timeout_share). Look at the service behind "
        "the tool first, then raise task.tool_timeout_s.",
    ),
    _Rule(
        "tool_errors", "rollout/tool_error_share", lambda x: x > 0.5,
        "Over half of the tool calls failed in {steps} (rollout/tool_error_share). Look at what the tools replied "
        "(reply) in rollouts/, and at rollout/invalid_argument_share.",
        unless=_above(
            0.3, "rollout/malformed_call_share", "rollout/unknown_tool_share", "rollout/tool_timeout_share"
        ),  # which have sentences of their own
    ),
    _Rule(
        "no_calls", "rollout/tool_calls_mean", lambda x: x < 0.05,
        "Under 1 in 20 episodes called a tool in {steps} (rollout/tool_calls_mean). Look at a prompt in rollouts/: "
        "does it name the tools and ask for them? If calls stand in the text, prompt.tool_format is another one.",
    ),
    _Rule(
        "max_turns", "rollout/max_turns_share", lambda x: x > 0.5,
        "Over half of the episodes used up their turns without an answer in {steps} (rollout/max_turns_share). "
        "Look at the last turns in rollouts/, then raise task.max_turns or ask for an answer earlier.",
    ),
)  # fmt: skip


def checked() -> dict[str, str]:
    """The metric that a hint is about, for every key of a rule: `{"truncated": "rollout/truncated_share", ...}`."""
    return {rule.key: rule.metric for rule in _RULES}


def hints(history: Sequence[Metrics], *, window: int = WINDOW, penalties: Collection[str] = ()) -> list[Hint]:
    """What looks wrong in the metrics so far, oldest first; the last `window` steps and all evaluations count.

    `penalties` are the parts of the reward that are 0 where all is well.
    """
    solved = _solved(history)
    updates = [metrics for metrics in history if "reward/mean" in metrics]  # the line of step 0 only evaluates
    recent = updates[-window:] if len(updates) >= window else []
    steps = "the last step" if window == 1 else f"each of the last {window} steps"
    found = [
        Hint(key=rule.key, text=rule.text.format(steps=steps))
        for rule in _RULES
        if not (rule.unless_solved and solved) and recent and all(map(rule.found, recent))
    ]
    return found + _silent_parts(recent, steps, penalties) + _gamed(history) + _got_worse(history)


def _silent_parts(recent: Sequence[Metrics], steps: str, penalties: Collection[str]) -> list[Hint]:
    """One hint for each part of the reward that is exactly 0 all the time while another one is not.

    An error that hides in the reading of answers looks just so: exact match is silently 0, the rest is trained on.
    """
    names = {name for metrics in recent for name in metrics}
    named = {name for name in names if name.startswith("reward/") or name == "episode/answer_em"}
    named -= {"reward/mean", "reward/std", "reward/within_group_std"}
    parts = sorted(name for name in named if name.rpartition("/")[2] not in penalties)
    silent = [name for name in parts if all(metrics.get(name) == 0 for metrics in recent)]
    if len(silent) > 1 and "episode/answer_em" in silent:
        silent.remove("episode/answer_em")  # the part of the reward says it
    if not any(metrics.get(name, 0.0) > 0 for metrics in recent for name in parts):
        return []
    return [
        Hint(
            key=f"silent/{name}",
            text=f"{name} was exactly 0 in {steps} while other parts of the reward were not: never right, or never "
            "read. Compare an answer in rollouts/ with its reference by hand, then score it with `rlvr score`.",
        )
        for name in silent
    ]


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
        accuracy, reward = f"eval/{task}/accuracy", f"eval/{task}/reward"
        rows = [metrics for metrics in history if accuracy in metrics and reward in metrics]
        if not rows:
            continue
        best, last = max(rows, key=lambda metrics: metrics[accuracy]), rows[-1]
        if last[f"{accuracy}_high"] < best[f"{accuracy}_low"] and last[reward] > best[reward]:
            text = (
                f"Reward rises while held-out accuracy falls on {task}, by more than chance: it is being gamed. "
                "Read the newest rollouts/, and give the parts of the reward that are not the answer less weight; "
                "the checkpoint with the best accuracy is kept (trainer.keep_best)."
            )
            found.append(Hint(key=f"gamed/{task}", text=text))
    return found


def _got_worse(history: Sequence[Metrics]) -> list[Hint]:
    """One hint a task whose last evaluation lies below the first by more than chance explains."""
    found = []
    for task in sorted({task for metrics in history for task in _accuracies(metrics, "accuracy_low")}):
        first = next(metrics[name] for metrics in history if (name := f"eval/{task}/accuracy_low") in metrics)
        highs = [metrics[name] for metrics in history if (name := f"eval/{task}/accuracy_high") in metrics]
        if highs and highs[-1] < first:
            text = (
                f"Held-out accuracy on {task} is now lower than before training, by more than chance. "
                "Lower trainer.learning_rate, and compare the reward with the metric: the reward may be gamed."
            )
            found.append(Hint(key=f"worse/{task}", text=text))
    return found

"""Every name that may stand in `metrics.jsonl`; docs/metrics.md is printed from this table."""

# ruff: noqa: E501 - the table below has one row a line

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalogue. `<part>`, `<task>` ... in a name stand for a word, `<k>` for a whole number."""

    name: str
    unit: str
    meaning: str
    bad: str


def _interval(
    name: str, called: str = "", *, unit: str = "share", low: str = "as accuracy_low"
) -> tuple[Metric, Metric]:
    """The rows of the ends of an interval."""
    return (
        Metric(f"eval/<task>/{name}_low", unit, f"{called or name}: lower end of its 95 % interval", low),
        Metric(
            f"eval/<task>/{name}_high", unit, f"{called or name}: upper end of its 95 % interval", "as accuracy_low"
        ),
    )


CATALOGUE: tuple[Metric, ...] = (
    Metric("step", "count", "updates made when the line was written; 0 is before the first update", "-"),
    # loss
    Metric("loss/total", "loss", "what the optimizer minimizes, all terms with their weights, mean over the step's updates", "null; growing without end"),
    Metric("loss/policy", "loss", "the policy term per trained token; near 0 when old and current policy agree, so its level says little", "null; jumps of many times its usual size"),
    Metric("loss/value", "loss", "the critic's term per trained token, before value_coef (ppo)", "not falling over the first tens of steps"),
    # reward
    Metric("reward/mean", "reward", "mean reward of the step's episodes, without verifier errors", "flat for hundreds of steps; 0 from the start"),
    Metric("reward/std", "reward", "standard deviation over all episodes of the step", "0: every episode got the same reward"),
    Metric("reward/within_group_std", "reward", "standard deviation inside a group, averaged over groups: what there is to learn from", "near 0: completions of one example are all alike"),
    Metric("reward/<part>", "reward", "mean of one named part of the reward, before its weight (rpn: boxed, correct)", "0 while the others rise: the model games the others"),
    # rollout
    Metric("rollout/episodes", "count", "episodes sampled for the step", "fewer than prompts_per_step x group_size with dynamic sampling: refills ran out"),
    Metric("rollout/refilled_groups", "count", "groups that dynamic sampling threw away and replaced", "many times prompts_per_step: the task is too hard or too easy"),
    Metric("rollout/zero_advantage_share", "share", "groups whose rewards are all equal, from which a group algorithm learns nothing; 1 with group_size=1", "over 0.9 while accuracy is low: no signal; near 1 at high accuracy is success"),
    Metric("rollout/truncated_share", "share", "episodes that ended because max_completion_tokens or the context ran out", "over 0.2: the model is cut off before its answer"),
    Metric("rollout/invalid_share", "share", "episodes whose answer could not be parsed", "over 0.5 after the first steps: the format is not learned"),
    Metric("rollout/error_share", "share", "episodes whose verifier failed; they are left out of statistics and loss", "anything above 0"),
    Metric("rollout/completion_tokens_mean", "tokens", "sampled tokens per episode, mean", "rising without the reward: padding or rambling; falling to 1: collapse"),
    Metric("rollout/completion_tokens_max", "tokens", "sampled tokens of the longest episode", "always max_completion_tokens"),
    Metric("rollout/empty_mask_share", "share", "episodes of which no token was sampled, so that none can be trained on", "anything above 0: the engine gave requests up"),
    Metric("rollout/entropy", "nats", "minus the mean behavior logprob of the sampled tokens", "near 0 at low reward: the model no longer explores"),
    Metric("rollout/staleness_mean", "updates", "with max_staleness > 0: updates between the weights that sampled a token and those it is trained on, mean over sampled tokens", "equal to max_staleness in every step: the sampler is always done early, so a larger bound only makes tokens older; over 1 while mismatch_kl rises: lower max_staleness"),
    Metric("rollout/staleness_max", "updates", "the same of the oldest token; never above max_staleness, which is checked", "-"),
    # episodes with tools
    Metric("rollout/turns_mean", "count", "with tools: completions per episode, mean", "1 where the question needs a search; always task.max_turns"),
    Metric("rollout/tool_calls_mean", "count", "with tools: calls per episode, mean, failed ones included", "near 0: the model does not call; rising without the reward: it pays to fetch everything"),
    Metric("rollout/max_turns_share", "share", "with tools: episodes that ended because their turns were used up", "over 0.5: no answer is given in time"),
    Metric("rollout/tool_error_share", "share", "of all tool calls, those that failed in any way; the model was told", "over 0.5"),
    Metric("rollout/malformed_call_share", "share", "of all tool calls, those that could not be read (no JSON, no name)", "over 0.3: prompt.tool_format is not the model's"),
    Metric("rollout/unknown_tool_share", "share", "of all tool calls, those of a tool that there is not", "over 0.3: the prompt does not show the tools"),
    Metric("rollout/invalid_argument_share", "share", "of all tool calls, those with arguments of the wrong name or type", "over 0.3"),
    Metric("rollout/tool_timeout_share", "share", "of all tool calls, those that took longer than task.tool_timeout_s", "anything above 0: the service behind the tool is slow or down"),
    # facts beside the reward
    Metric("episode/valid_steps", "share", "rpn: written reduction steps that are right, mean over the step's episodes that write any", "falling while the reward rises: the steps are decoration"),
    Metric("episode/<fact>", "share", "several documents: a fact that no reward setting moves, mean over the step's episodes: answer_em and answer_f1 (official), recall, precision and F1 of what was found (paragraphs_ or corpus_, for where was searched) and cited (citation_); hops is a count", "answer_em 0 while the reward rises: answers are not read, or the reward is gamed"),
    # tasks of a mix
    Metric("task/<task>/episodes", "count", "episodes of one task of a mix", "far from its weight over many steps"),
    Metric("task/<task>/reward_mean", "reward", "mean reward of one task of a mix, without verifier errors", "flat while the others rise: its weight is too small, or it is too hard"),
    Metric("task/<task>/invalid_share", "share", "as rollout/invalid_share, of one task of a mix", "over 0.5 after the first steps"),
    Metric("task/<task>/truncated_share", "share", "as rollout/truncated_share, of one task of a mix", "over 0.2"),
    # policy
    Metric("policy/entropy", "nats", "entropy of the policy's distribution, mean over trained tokens", "falling to 0 while the reward is low: collapse; rising steadily: noise"),
    Metric("policy/clip_fraction", "share", "trained tokens whose ratio was clipped", "over 0.3: the update is too large; exactly 0 over several epochs: it is too small"),
    Metric("policy/clip_low", "share", "trained tokens clipped at 1 - clip_low", "as clip_fraction"),
    Metric("policy/clip_high", "share", "trained tokens clipped at 1 + clip_high", "as clip_fraction"),
    Metric("policy/ratio", "ratio", "mean of current / old probability over trained tokens", "not 1 within 0.1: old logprobs are wrong or the update is too large"),
    Metric("policy/approx_kl", "nats", "KL(old || current) per token, estimated with k3", "over 0.1: the update is too large"),
    Metric("policy/reference_kl", "nats", "KL(current || reference) per token, estimated with k3 (with a reference only)", "growing without bound while the reward stands still"),
    Metric("policy/mismatch_kl", "nats", "KL(sampler || trainer) per token, estimated with k3: between the engine's logprobs and the trainer's before the update, which with max_staleness=0 are of the same weights", "over 0.01: with max_staleness=0 sampler and trainer disagree (precision, kernels, stale weights); above it, tokens are too old for the learning rate"),
    Metric("policy/mismatch_weight", "ratio", "mean weight of the mismatch correction (of the token, or of its sequence), before cap and mask", "far from 1: most of the batch is weighted away; for whole sequences: completions are too long for products"),
    Metric("policy/mismatch_capped", "share", "trained tokens whose mismatch weight lies above mismatch_cap, corrected or not (geometric_mask: outside 1/cap to cap)", "over 0.05: sampler and trainer disagree, or the cap is too low for weights of sequences"),
    Metric("policy/clamped_tokens", "share", "trained tokens whose log-ratio was extreme, missing or infinite and was clamped", "anything above 0"),
    Metric("policy/grad_norm", "norm", "norm of the gradient before clipping, mean over the step's updates", "0: nothing is learned; always far above max_grad_norm: lower the learning rate"),
    Metric("policy/learning_rate", "1", "learning rate of the step's last update", "0 before the end of the schedule"),
    Metric("policy/changed_weight_share", "share", "weights whose stored value changed in the step", "near 0: steps are lost in rounding, or the learning rate is far too small"),
    Metric("policy/trained_tokens", "count", "tokens with a weight in the loss, over all updates of the step; rows without a gradient are skipped", "0, or far below rollout/episodes x completion_tokens_mean: little is learned from the step"),
    Metric("policy/trained_token_share", "share", "of the sampled tokens of all updates, those with a weight in the loss", "near 0: nearly all groups have equal rewards, or are masked"),
    Metric("policy/updates", "count", "optimizer steps made in this step", "fewer than num_epochs x num_minibatches: target_kl stopped them"),
    Metric("critic/value_mean", "reward", "mean of the critic's values before the update (ppo)", "far from reward/mean after many steps"),
    Metric("critic/explained_variance", "share", "1 - variance of (return - value) / variance of the return; 0 where the return is constant (ppo)", "below 0 after many steps: the critic hurts; in a short run it explains nothing"),
    # evaluation
    Metric("eval/<task>/accuracy", "share", "the task's headline metric on held-out examples, greedy", "falling while reward/mean rises: the reward is being gamed"),
    *_interval("accuracy", low="an interval wider than the gain you look for: raise evaluation.num_examples"),
    Metric("eval/<task>/accuracy_<tag>", "share", "greedy accuracy on held-out examples of one kind: so many operators (rpn), hops or steps", "rising for the easy kinds only: no generalization"),
    *_interval("accuracy_<tag>"),
    Metric("eval/<task>/num_examples", "count", "held-out examples judged, always the same ones", "-"),
    Metric("eval/<task>/reward", "reward", "mean reward of the greedy completions; not the metric", "rising while accuracy does not: the reward is being gamed"),
    Metric("eval/<task>/part_<part>", "reward", "mean of one named part of the reward over greedy completions, before its weight", "rising while accuracy does not: the model learns the form only"),
    Metric("eval/<task>/part_<part>_<tag>", "reward", "the same on held-out examples of one kind", "as accuracy_<tag>"),
    Metric("eval/<task>/sampled_part_<part>", "reward", "the same over sampled completions", "as part_<part>"),
    *_interval("sampled_part_<part>", unit="reward"),
    Metric("eval/<task>/valid_steps", "share", "rpn: written reduction steps that are right, mean over greedy completions that write any", "falling while accuracy rises: the steps are decoration"),
    Metric("eval/<task>/valid_steps_<tag>", "share", "the same on held-out examples of one kind", "as valid_steps"),
    Metric("eval/<task>/<fact>", "share", "as episode/<fact>, over greedy episodes", "answer_em far below answer_f1: right, but not in the words asked for"),
    Metric("eval/<task>/<fact>_<tag>", "share", "the same on held-out examples of one kind", "recall falling with the hops: the second search does not use what the first one found"),
    Metric("eval/<task>/<tool>", "count or share", "as rollout/turns_mean, tool_calls_mean, max_turns_share, tool_error_share, malformed_call_share, unknown_tool_share, invalid_argument_share and tool_timeout_share, over greedy episodes", "as those"),
    Metric("eval/<task>/completion_tokens_mean", "tokens", "tokens per greedy completion, mean", "rising without accuracy"),
    Metric("eval/<task>/invalid_share", "share", "greedy completions whose answer could not be parsed", "above a few percent after training"),
    Metric("eval/<task>/truncated_share", "share", "greedy completions cut off for length", "above a few percent: raise max_completion_tokens"),
    Metric("eval/<task>/error_share", "share", "greedy completions whose verifier failed, in the reward or the metric; where the metric failed they are in no other number", "anything above 0"),
    Metric("eval/<task>/sampled_accuracy", "share", "accuracy of sampled completions, mean over samples (avg@k)", "far below accuracy: right answers are luck of the mode"),
    *_interval("sampled_accuracy", "sampled accuracy"),
    Metric("eval/<task>/pass_at_<k>", "share", "unbiased estimate of the chance that at least one of k samples is right", "falling while accuracy rises: diversity is lost"),
    *_interval("pass_at_<k>"),
    Metric("eval/<task>/maj_at_<k>", "share", "examples whose most frequent answer among k samples is right, ties shared", "below sampled_accuracy: the model agrees on wrong answers"),
    *_interval("maj_at_<k>"),
    Metric("eval/<task>/samples_per_example", "count", "samples behind sampled_accuracy, pass_at_<k> and maj_at_<k>", "-"),
    # clock and machine: everything that may differ between two equal runs
    Metric("time/step_s", "seconds", "wall clock of the whole step", "rising: completions grow, or the machine is shared"),
    Metric("time/generation_share", "share", "part of the step spent sampling; with max_staleness > 0 only what the trainer waited for it", "with max_staleness > 0 over 0.5: generation bounds the step, and a larger bound will not help"),
    Metric("time/scoring_share", "share", "part of the step spent on old and reference logprobs and values", "-"),
    Metric("time/update_share", "share", "part of the step spent on forward, backward and the optimizer", "-"),
    Metric("time/sync_share", "share", "part of the step spent on giving the engine the new weights", "over 0.2"),
    Metric("time/evaluation_share", "share", "part of the step spent on held-out evaluation", "over 0.5 in most steps: raise evaluation.every"),
    Metric("time/other_share", "share", "the rest", "over 0.2"),
    Metric("time/tokens_per_s", "tokens/s", "sampled tokens per second of the step", "falling"),
    Metric("system/peak_memory_mb", "MB", "largest resident memory of the process so far", "rising without end"),
    Metric("system/microbatch_tokens", "tokens", "most tokens of one forward and backward pass; half as many since memory ran out", "falling: set trainer.microbatch_tokens to what it came down to"),
)  # fmt: skip

_PLACEHOLDERS = {
    "part": r"[^/]+",
    "task": r"[^/]+",
    "k": r"\d+",
    "tag": r"(?:\d+_(?:or_more_)?[a-z]+|yes_or_no)",
    "fact": r"(?:hops|answer_em|answer_f1|(?:citation|paragraphs|corpus)_(?:recall|precision|f1))",
    "tool": r"(?:turns_mean|tool_calls_mean|max_turns_share|"
    r"(?:tool_error|malformed_call|unknown_tool|invalid_argument|tool_timeout)_share)",
}


def _pattern(name: str) -> re.Pattern[str]:
    """`eval/<task>/pass_at_<k>` as a regular expression."""
    pieces = re.split(r"<(\w+)>", name)
    return re.compile("".join(_PLACEHOLDERS[p] if i % 2 else re.escape(p) for i, p in enumerate(pieces)))


def describe(name: str) -> Metric | None:
    """The catalogue's row for a name, exact names before patterns, long ones before short; None if there is none."""
    exact = next((metric for metric in CATALOGUE if metric.name == name), None)
    fitting = [metric for metric in CATALOGUE if _pattern(metric.name).fullmatch(name)]
    return exact or max(fitting, key=lambda metric: len(metric.name), default=None)


def undocumented(names: Iterable[str]) -> list[str]:
    """The names that the catalogue does not know, sorted."""
    return sorted(name for name in set(names) if describe(name) is None)


_SECTIONS = {
    "step": "Step",
    "loss": "Loss",
    "reward": "Reward",
    "rollout": "Rollouts",
    "episode": "Facts beside the reward (means over the step's episodes that have them)",
    "task": "Tasks of a mix (only on the steps that hold more than one)",
    "policy": "Policy and update",
    "critic": "Critic",
    "eval": "Held-out evaluation (only on the steps that evaluate)",
    "time": "Time",
    "system": "Machine",
}

_INTRODUCTION = """\
# Metrics

`metrics.jsonl` in a run folder has one JSON object a line, one line a step: `step` first, then the names below in
alphabetical order. A number that is not finite is written as `null`. The line of step 0 holds the evaluation before
the first update. Names that do not apply to a run (the critic's without a critic) are absent.

Two runs with one seed give equal lines on one machine, except for everything under `time/` and `system/`; with
`rollout.max_staleness` > 0 only the prompts are the same, because it depends on the clock which tokens are how old.

`<task>` is the task's name, `<part>` the name of a part of the reward, `<k>` a whole number, `<tag>` a kind of example
(`3_operators`, `2_hops`, `1_step`). Numbers with tools are those of the episodes that have tools. A share lies between
0 and 1. This page is generated: `python -m rlvr.tracking.metrics > docs/metrics.md`.
"""


def _row(*cells: str) -> str:
    """A line of a Markdown table; a bar inside a cell would begin the next one."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def document() -> str:
    """The text of docs/metrics.md."""
    parts = [_INTRODUCTION]
    for prefix, title in _SECTIONS.items():
        rows = [metric for metric in CATALOGUE if metric.name.split("/")[0] == prefix]
        table = [_row(f"`{m.name}`", m.unit, m.meaning, m.bad) for m in rows]
        header = ["| name | unit | meaning | looks wrong when |", "|---|---|---|---|"]
        parts.append("\n".join([f"## {title}", "", *header, *table, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    print(document(), end="")

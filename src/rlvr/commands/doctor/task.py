"""Checks of the data and the reward: what is paid for right, wrong, empty and odd answers."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr.commands.doctor.patient import Patient, Scripted, skip, verdict
from rlvr.commands.doctor.template import end_of_turn
from rlvr.core.episode import ChatModel, run_episode
from rlvr.rewards.custom import Custom
from rlvr.run.tasks import context_tokens
from rlvr.tracking.checks import Check
from rlvr.types import Episode, Example, Message, ToolCall

NUM_EXAMPLES, NUM_PROMPTS = 8, 64
MOST_LEFT_OUT = 0.1  # of the prompts
ODD = ("", "9" * 3000, "\\boxed{{{", "#### ####", "<answer></answer>\u202e\U0001f600", "1e999 nan -- 1/0")
"""What models write; a reward must read or refuse it."""


def _played(patient: Patient, example: Example, turns: Sequence[Any]) -> Episode:
    """An episode with these completions, played and scored as in training."""
    chat, env = patient.chat, patient.task.env(example)
    completions = []
    for number, turn in enumerate(turns):
        calls = ()
        if not isinstance(turn, str):
            calls = (ToolCall(id=f"call_{number}", name=turn["name"], arguments=dict(turn.get("arguments", {}))),)
        text = chat.tool_format.write(calls, env.tools) if calls else turn
        said = Message(role="assistant", content="" if calls else text, tool_calls=calls)
        completions.append((*patient.coder.encode(text), *end_of_turn(chat, said, text)))
    model = ChatModel(engine=Scripted(completions), chat=chat, max_context_tokens=10**9)
    params = patient.params(0, 1.0, 10**6)
    return asyncio.run(run_episode(example, env, model, lambda turn: params, sample_index=0, seed=0))


def _value(patient: Patient, example: Example, turns: Sequence[Any]) -> float:
    score = _played(patient, example, turns).score
    return score.value if score.status != "error" else float("nan")


def prompts_fit(patient: Patient) -> Check:
    room = context_tokens(patient.policy) - patient.config.rollout.max_completion_tokens
    lengths = [len(patient.prompt(index)[1]) for index in range(NUM_PROMPTS)]
    long = [length for length in lengths if length > room]
    patient.tasks.fit(patient.config, patient.policy)  # as the run does, for the checks that follow
    return verdict(
        room <= 0 or len(long) > MOST_LEFT_OUT * NUM_PROMPTS,
        f"{len(long)} of {NUM_PROMPTS} prompts have more than the {max(0, room)} tokens that a whole completion leaves",
        f"the longest of {NUM_PROMPTS} prompts has {max(lengths)} tokens, and a whole completion leaves {room}",
        "lower rollout.max_completion_tokens, shorten the prompt, or use a model with more context; prompts that do "
        "not fit are left out of training",
        context=context_tokens(patient.policy),
        max_completion_tokens=patient.config.rollout.max_completion_tokens,
        longest=max(lengths),
    )


def gold_scores_full(patient: Patient) -> Check:
    golds = patient.task.solutions(NUM_EXAMPLES)
    if not golds:
        return skip("the task knows no right completion to try")
    parts = getattr(patient.tasks.verifiers.get(patient.task.name), "parts", {})
    ours = {
        name for name, part in parts.items() if not (isinstance(part, Custom) or part.is_penalty or not part.weight)
    }
    bad = []
    for example, turns in golds:
        score = _played(patient, example, turns).score
        low = {name: value for name, value in score.parts.items() if name in ours and value < 1}
        if score.status != "scored" or (score.value <= 0 and not score.late) or low:
            why = score.diagnostics.get("error") or low or score.status
            bad.append(
                {
                    "example": example.id,
                    "answer": example.answer,
                    "completion": turns[-1],
                    "value": None if score.status == "error" else score.value,
                    "why": why,
                }
            )
    return verdict(
        bool(bad),
        f"{len(bad)} of {len(golds)} right answers do not earn full marks",
        f"{len(golds)} right answers earn full marks",
        "correct the reward, or the prompt's answer_in: training would punish right answers",
        examples=bad[:3],
    )


def metric_agrees(patient: Patient) -> Check:
    """The evaluation's metric, which shares no code with the reward."""
    golds = patient.task.solutions(NUM_EXAMPLES)
    if not golds:
        return skip("the task knows no right completion to try")
    found = [(e, asyncio.run(patient.task.grade(e, _played(patient, e, turns).texts))) for e, turns in golds]
    bad = [
        {"example": e.id, "expected": e.answer, "read": g.answer, "why": g.failure} for e, g in found if not g.correct
    ]
    return verdict(
        bool(bad),
        f"the metric calls {len(bad)} of {len(golds)} right answers wrong",
        f"the metric calls {len(golds)} right answers right",
        "choose the task.metric that reads these answers: accuracy would look flat while the reward rises",
        examples=bad[:3],
    )


def _pays(patient: Patient, what: str, texts: Mapping[int, Sequence[str]], remedy: str) -> Check:
    """Fails if more than half of the examples pay for one of their texts at least what their right answer earns."""
    golds, paid, asked = patient.task.solutions(NUM_EXAMPLES), [], 0
    known = [(example, _value(patient, example, turns)) for example, turns in golds]
    known = known or [(patient.task.train_example(index), 1e-9) for index in range(NUM_EXAMPLES)]
    for index, (example, full) in enumerate(known):
        for text in texts.get(index, texts.get(-1, ())):
            text = text.replace("{question}", example.messages[-1].content)
            if not patient.reads(text):
                continue
            asked += 1
            value = _value(patient, example, [text])
            if value >= full:
                paid.append({"example": example.id, "completion": text[:200], "value": value, "right_answer": full})
    return verdict(
        2 * len(paid) > asked,
        f"{len(paid)} of {asked} {what} earn as much as the right answer",
        f"{asked} {what} earn less than the right answer" if not paid else f"{len(paid)} of {asked} {what} are paid",
        remedy,
        examples=paid[:3],
    )


def empty_scores_less(patient: Patient) -> Check:
    return _pays(patient, "empty completions", {-1: ("",)}, "let the reward return 0 where there is no answer")


def wrong_scores_less(patient: Patient) -> Check:
    golds = patient.task.solutions(NUM_EXAMPLES)
    answers = [(example.answer, turns[-1]) for example, turns in golds]
    others = {i: next((t for a, t in answers if a != answer), None) for i, (answer, _) in enumerate(answers)}
    texts = {index: (text,) for index, text in others.items() if isinstance(text, str)}
    if not texts:
        return skip("the task knows no two right completions with different answers")
    return _pays(
        patient,
        "right answers to other questions",
        texts,
        "a reward that does not depend on the answer "
        "gives every group the same rewards, and no gradient: compare with the argument `answer`",
    )


def echo_scores_less(patient: Patient) -> Check:
    texts = ("{question}", "I do not know. {question}")
    return _pays(
        patient,
        "repetitions of the question",
        {-1: texts},
        "score the completion alone: a model learns to repeat what is paid",
    )


def reward_repeats(patient: Patient) -> Check:
    tried = [(example, turns) for example, turns in patient.task.solutions(4)]
    tried += [(patient.task.train_example(index), ["x y z" if patient.reads("x y z") else ""]) for index in range(4)]
    odd = []
    for example, turns in tried:
        values = {repr(_value(patient, example, turns)) for _ in range(4)}
        if len(values) > 1:
            odd.append({"example": example.id, "completion": str(turns[-1])[:200], "values": sorted(values)})
    return verdict(
        bool(odd),
        f"the same completion earns different rewards ({len(odd)} of {len(tried)} that were scored four times)",
        f"the same completion earns the same reward ({len(tried)} scored four times)",
        "take clocks, random numbers and state out of the reward, or give it a seed from the example",
        examples=odd[:3],
    )


def reward_survives(patient: Patient) -> Check:
    example, bad = patient.task.train_example(0), []
    texts = [*ODD, example.messages[-1].content, *(str(t[-1])[:-1] for _, t in patient.task.solutions(2))]
    for text in filter(patient.reads, texts):
        score = _played(patient, example, [text]).score
        if score.status == "error":
            bad.append({"completion": text[:100], "error": score.diagnostics.get("error")})
    return verdict(
        bool(bad),
        f"the reward failed on {len(bad)} of {len(texts)} odd completions: {bad[0]['error'] if bad else ''}",
        f"the reward reads or refuses {len(texts)} odd completions",
        "return None for what cannot be read: such episodes are left out of the group and the loss",
        examples=bad[:3],
    )


CHECKS = (
    prompts_fit,
    gold_scores_full,
    metric_agrees,
    empty_scores_less,
    wrong_scores_less,
    echo_scores_less,
    reward_repeats,
    reward_survives,
)

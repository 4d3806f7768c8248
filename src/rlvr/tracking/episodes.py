"""Prints episodes turn by turn: sampled and other tokens, and the outcome.

Model output is escaped: no escape sequence reaches the terminal, no markup is parsed, and the model's lines are
indented more than ours. Tokens that are not trained on are in square brackets, dim with colors, according to the
trained row's mask (not to their author).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from rlvr.printable import printable
from rlvr.records.graded import EvaluationRecord
from rlvr.records.rollouts import CallRecord, Decode, EpisodeRecord, TextTurn, TurnRecord
from rlvr.types import GradedAnswer, Group, StopReason

Span = tuple[str, str]  # text and its rich style
Line = list[Span]

PLAIN, LABEL, TRAINED, MASKED, GOOD, BAD = "", "bold", "green", "dim", "bold green", "bold red"
MAX_CHARS = 2_000  # per text; longer ones lose their middle
MAX_PROMPT_CHARS = 600  # per first prompt, whose end matters most
MAX_CALL_CHARS = 300
_WIDTH = 10  # of the labels
_FAILURES = {"tool_errors", "malformed_calls", "unknown_tools", "invalid_arguments", "tool_timeouts"}  # if any


def indented(text: str, limit: int = MAX_CHARS) -> str:
    """The text with control characters escaped, indented, and cut in its middle to about `limit` characters."""
    if len(text) > limit:
        left_out = len(text) - limit
        text = f"{text[: limit // 2]} ... {left_out:,} characters left out ... {text[len(text) - limit // 2 :]}"
    return printable(text, keep="\n").replace("\n", "\n" + " " * _WIDTH)


def call_text(call: CallRecord) -> str:
    """`search(query="Oslo", top_n=3)`, or the problem of a malformed call."""
    if call.problem is not None:
        return indented(f"no call: {call.problem}", MAX_CALL_CHARS)
    arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return indented(f"{call.name}({arguments})", MAX_CALL_CHARS)


def grade_text(grade: GradedAnswer, expected: str, stop_reason: str) -> str:
    """`answer 7: right`, `answer 7: wrong, 5 is right`, `the model gave no answer; 5 is right`."""
    if grade.failure is not None:
        return f"no grade: {grade.failure}"
    known = f"; {expected} is right" if expected else ""
    if grade.answer is None:
        reason = "was cut off before an answer" if stop_reason == StopReason.LENGTH else "gave no answer"
        return f"the model {reason}{known}"
    if not expected:
        return f"answer {grade.answer}"
    return f"answer {grade.answer}: {'right' if grade.correct else f'wrong, {expected} is right'}"


@dataclass(frozen=True, kw_only=True)
class EpisodePrinter:
    print: Callable[[Sequence[Line]], None]  # prints lines of styled text
    decode: Decode
    weights: Callable[[Group], Mapping[str, float]]  # weights of a group's reward parts; empty if unknown
    grades: Callable[[Group], Sequence[GradedAnswer]]  # the metric's grades of a group's episodes

    def show(self, step: int, groups: Sequence[Group], records: Sequence[EpisodeRecord]) -> None:
        """Print all episodes of a step; `records` belong to the groups' episodes, in order."""
        grades = [grade for group in groups for grade in self.grades(group)]
        for record, grade in zip(records, grades, strict=True):
            group = groups[record.group]
            title = (
                f"step {step}, group {record.group + 1} of {len(groups)}, "
                f"episode {record.sample_index + 1} of {len(group.episodes)}, example "
            )
            head: Line = [(f"---- {title}", LABEL), (indented(record.example_id, 100), LABEL)]
            self.print([head, *episode_lines(record, grade, self.weights(group), self.decode)])


def episode_lines(
    record: EpisodeRecord, grade: GradedAnswer, weights: Mapping[str, float], decode: Decode
) -> Iterator[Line]:
    last = len(record.turns) - 1
    for index, (turn, told, said) in enumerate(_masked_turns(record)):
        is_new = len(told) == len(turn.prompt_ids)  # the first turn, or the template rewrote history
        before = _spans(told, decode, MAX_PROMPT_CHARS if is_new else MAX_CHARS, tail=is_new)
        yield _labelled("prompt" if is_new else "reply", before)
        yield _labelled(f"turn {index + 1}", _spans(said, decode, MAX_CHARS))
        yield from (_labelled("", [(f"calls {call_text(call)}", PLAIN)]) for call in turn.calls)
        if index == last or turn.stop_reason != StopReason.STOP:
            yield _labelled("", [_ending(record, turn)])
    found = indented(grade_text(grade, record.answer, record.stop_reason))
    yield _labelled("answer", [(found, GOOD if grade.correct else BAD)])
    yield _labelled("reward", [(_reward(record, weights), PLAIN)])
    facts = [f"{name} {_number(value)}" for name, value in record.diagnostics.items() if value or name not in _FAILURES]
    if facts:
        yield _labelled("facts", [(indented(", ".join(facts)), PLAIN)])
    yield _labelled("training", [(_training(record), PLAIN)])


def turn_lines(turns: Sequence[TextTurn], prompt: str) -> Iterator[Line]:
    """An episode without known mask: completion, calls and reply of each turn."""
    yield _labelled("prompt", [(indented(_tail(prompt, MAX_PROMPT_CHARS)), MASKED)])
    for number, turn in enumerate(turns, start=1):
        yield _labelled(f"turn {number}", [(indented(turn.completion), TRAINED)])
        yield from (_labelled("", [(f"calls {call_text(call)}", PLAIN)]) for call in turn.calls)
        if turn.reply is not None:
            yield _labelled("reply", [(indented(turn.reply), MASKED)])


def by_turn(record: EvaluationRecord) -> str:
    """An evaluated episode with tools: completions, calls and replies, then the grade."""
    lines = ["".join(text for text, _ in line).rstrip() for line in turn_lines(record.turns, record.prompt)]
    return "\n".join([f"---- {indented(record.example_id)}", *lines, indented(grade_line(record))]) + "\n"


def grade_line(record: EvaluationRecord) -> str:
    grade = GradedAnswer(answer=record.answer, correct=record.correct, failure=record.failure)
    return grade_text(grade, record.expected, record.stop_reason)


def _labelled(label: str, spans: Line) -> Line:
    return [(label.ljust(_WIDTH), LABEL), *spans]


Masked = list[tuple[int, int]]  # token ids with their entries of the training mask


def _masked_turns(record: EpisodeRecord) -> Iterator[tuple[TurnRecord, Masked, Masked]]:
    """For each turn its completion, and the tokens before it that are new in the row."""
    rows = iter(record.rows)
    row, place = next(rows), 0
    for turn in record.turns:
        if place == len(row.ids):  # end of the row: the template rewrote history, and a new row began
            row, place = next(rows), 0
        start, end = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.completion_ids)
        tokens = list(zip(row.ids, row.loss_mask, strict=True))
        yield turn, tokens[place:start], tokens[start:end]
        place = end


def _spans(tokens: Masked, decode: Decode, limit: int, *, tail: bool = False) -> Line:
    spans: Line = []
    for is_trained, run in groupby(tokens, key=itemgetter(1)):
        text = decode([token for token, _ in run])
        text = indented(_tail(text, limit) if tail else text, 2 * limit)
        spans.append((text, TRAINED) if is_trained else (f"[{text}]", MASKED))
    return spans


def _tail(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"... {len(text) - limit:,} characters left out ... {text[-limit:]}"


def _ending(record: EpisodeRecord, turn: TurnRecord) -> Span:
    count = len(turn.completion_ids)
    sampled = f"{count} token{'s' * (count != 1)}"
    endings = {
        StopReason.STOP: (f"ended by itself after {sampled}", PLAIN),
        StopReason.LENGTH: (f"CUT OFF after {sampled}: max_completion_tokens or the context ran out", BAD),
        StopReason.MAX_TURNS: (f"NO TURNS LEFT after {len(record.turns)}", BAD),
        StopReason.ABORTED: ("GIVEN UP by the engine", BAD),
    }
    return endings[StopReason(record.stop_reason)]


def _reward(record: EpisodeRecord, weights: Mapping[str, float]) -> str:
    """`0.60 = 0.50 x answer 1.00 + 0.20 x citation 0.50`, with the sum if it differs from the reward."""
    parts = {name: value for name, value in record.reward_parts.items() if value is not None}
    if record.reward is None:
        return f"none: the verifier failed ({indented(str(record.diagnostics.get('error', 'no message')))})"
    status = "" if record.score_status == "scored" else f"  ({record.score_status}: the answer could not be read)"
    known = {name: value for name, value in parts.items() if weights.get(name)}
    terms = [f"{weights[name]:g} x {indented(name)} {value:.2f}" for name, value in known.items()]
    others = [f"{indented(name)} {value:.2f}" for name, value in parts.items() if name not in known]
    total = sum(weights[name] * value for name, value in known.items())
    sums_up = not known or abs(total - record.reward) < 1e-6
    other = "" if sums_up else f"  (the sum of the parts is {total:.4f})"
    made_of = (f" = {' + '.join(terms)}" if known else "") + (f"  (also {', '.join(others)})" if others else "")
    return f"{record.reward:.2f}{made_of}{other}{status}"


def _training(record: EpisodeRecord) -> str:
    masks = [mask for row in record.rows for mask in row.loss_mask]
    advantages = [advantage for row in record.rows for advantage in row.advantages or row.loss_mask]
    num_trained = sum(bool(mask and advantage) for mask, advantage in zip(masks, advantages, strict=True))
    if record.score_status == "error":
        return "left out, its reward is not known"
    if record.advantage is None:
        return "left out, no token of it was sampled"
    rows = f" in {len(record.rows)} rows" if len(record.rows) > 1 else ""
    return f"advantage {record.advantage:+.2f}, {num_trained} of {sum(masks)} tokens with mask 1 are trained on{rows}"


def _number(value: float | str | None) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)

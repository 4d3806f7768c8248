"""Twenty faults that were written down without a look at the checks of `rlvr doctor`, for `doctor_unseen.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import doctor_unseen_rewards as rewards
import torch
from doctor import CHATML, END, HEAD, LATER, ROWS, Case
from tokenizers import Regex, normalizers

CONTENT = "{{ m['content'] }}"
Change = Callable[[Case], Case]


def renders(old: str, new: str) -> Change:
    assert old in CHATML, old
    return lambda case: replace(case, template=CHATML.replace(old, new), with_tools=True)


def file_says(name: str, change: Callable[[dict[str, Any]], None]) -> Change:
    """Changes a JSON file of the model's folder."""

    def save(model: Any, folder: Path) -> None:
        path = folder / name
        said = json.loads(path.read_text())
        change(said)
        path.write_text(json.dumps(said))

    return lambda case: replace(case, saved=save)


def weights(change: Callable[[Any], None]) -> Change:
    def save(model: Any, folder: Path) -> None:
        with torch.no_grad():
            change(model)
        model.save_pretrained(folder)

    return lambda case: replace(case, saved=save)


def cuts(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.enable_truncation(8)


def fills(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.enable_padding(length=32, pad_token="<|endoftext|>")


def forgets_thousands(tokenizer: Any) -> None:
    """A comma between digits is dropped."""
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex(r"(?<=\d),(?=\d)"), "")


def blank_digits(model: Any) -> None:
    """Rows of the head from 250 on, as of a vocabulary that was enlarged by hand."""
    model.get_output_embeddings().weight[250:] = 0


def silent_end(model: Any) -> None:
    model.get_output_embeddings().weight[END] = float("-inf")


def asked(change: Callable[[int, dict[str, Any]], dict[str, Any]], **settings: Any) -> Change:
    return lambda case: replace(case, rows=[row | change(i, row) for i, row in enumerate(ROWS)], settings=settings)


def paid(reward: Callable[..., Any]) -> Change:
    return lambda case: replace(case, reward=reward)


LIMIT = {"rollout.max_completion_tokens": 24}
FIFTH: list[tuple[str, str, tuple[str, ...], Change]] = [
    ("model", "has a head of zeros for half of its vocabulary", ("weights_alive",), weights(blank_digits)),
    (
        "model",
        "has minus infinity in its stop token's row",
        ("weights_finite", "stop_is_possible"),
        weights(silent_end),
    ),
    (
        "model",
        "drops half of its attention in training",
        ("passes_repeat", "trainer_is_model", "no_dropout"),
        lambda case: replace(case, config={"attention_dropout": 0.5}),
    ),
    (
        "model",
        "ends with a token beyond its vocabulary",
        ("ends_turns", "ends_are_special", "stop_is_possible", "vocabulary_fits", "load"),
        file_says("generation_config.json", lambda said: said.update(eos_token_id=99_999)),
    ),
    (
        "model",
        "has context for prompts, and not for completions",
        ("prompts_fit", "answers_fit", "load"),
        lambda case: replace(case, config={"max_position_embeddings": 56}, settings=LIMIT),
    ),
    ("tokenizer", "cuts texts at 8 tokens", ("text_survives", "whole_messages"), lambda c: replace(c, tokenizer=cuts)),
    ("tokenizer", "fills texts up to 32 tokens", ("text_survives",), lambda case: replace(case, tokenizer=fills)),
    (
        "tokenizer",
        "drops commas between digits",
        ("text_survives",),
        lambda case: replace(
            case, tokenizer=forgets_thousands, architecture=case.architecture.replace("qwen2", "olmo2")
        ),
    ),
    (
        "template",
        "keeps the first line of a message",
        ("whole_messages",),
        renders(CONTENT, "{{ m.content.split('\\n')[0] }}"),
    ),
    (
        "template",
        "ends the prompt with the stop token",
        ("opens_completion",),
        renders("assistant\n{% endif %}", "assistant\n<|im_end|>{% endif %}"),
    ),
    (
        "template",
        "wants a system message",
        ("prompt_renders", "load", "whole_messages", "roles_kept"),
        renders(
            HEAD, "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}" + HEAD
        ),
    ),
    (
        "template",
        "cuts the mark at the end of a question",
        ("whole_messages",),
        renders(CONTENT, "{{ m.content.rstrip('?.!') if m.role == 'user' else m.content }}"),
    ),
    (
        "template",
        "shortens earlier answers to their last line",
        ("whole_messages", "appends_after_user", "keeps_reasoning", "appends_after_tools"),
        renders(CONTENT, "{{ m.content.split('\\n')[-1] if " + LATER + " else m.content }}"),
    ),
    (
        "task",
        "has no answer in every third row",
        ("gold_scores_full", "task_informs", "load", "rows_are_used"),
        asked(lambda i, row: {"answer": "" if i % 3 == 0 else row["answer"]}),
    ),
    (
        "task",
        "has units in its answers, which no one asks for",
        ("gold_scores_full",),
        lambda case: replace(
            case, rows=[row | {"answer": f"{row['answer']} apples"} for row in ROWS], reward=rewards.whole_number
        ),
    ),
    (
        "task",
        "has a template's name in place of its questions",
        ("task_informs", "load", "rows_are_used"),
        asked(lambda i, row: {"question": "{question}"}),
    ),
    (
        "reward",
        "pays for the gold anywhere in the text",
        ("long_scores_less", "wrong_scores_less"),
        paid(rewards.anywhere),
    ),
    ("reward", "seeds all generators", ("reward_is_alone", "reward_forgets", "reward_repeats"), paid(rewards.seeds)),
    ("reward", "takes forever on long numbers", ("reward_is_fast", "reward_survives"), paid(rewards.backtracks)),
    ("reward", "returns words", ("gold_scores_full", "reward_survives", "load"), paid(rewards.words)),
]

"""Forty faults of setting up a run, written down with the finding that is expected before the checks were read.

For `doctor_unseen.py --half seventh`. `load` is a refusal that names the fault before any check runs; `new` stands for
what no check says. Most of these checks were made for what the first run missed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import doctor_seventh_cases as cases
import torch
from doctor import CHATML, END, LORA, SPECIAL, Case
from doctor_sixth import (
    APPLES,
    PAIRS,
    Change,
    asks,
    on_disk,
    paid,
    question,
    rendered,
    says,
    settled,
    shop,
)
from safetensors.torch import load_file

MARKED: dict[str, Any] = {"prompt": "math_reasoning", "reward": "gsm8k", "prompt__markers": "working_out"}
TEXT: dict[str, Any] = {"reward": "text", "task__metric": "text"}
EXACT: dict[str, Any] = TEXT | {"reward__parts__correct__metric": "em"}
CITIES = ["Paris", "Oslo", "Rome", "Berlin", "Madrid", "Vienna", "Lisbon", "Athens", "Dublin", "Prague", "Bern"]


def model(name: str, change: Change) -> Change:
    return lambda case: replace(change(case), architecture=name)


def rows(make: Callable[[int, int, int], dict[str, Any]], **more: Any) -> Change:
    """Rows of `make`(row number, a, b)."""
    return asks([make(number, *pair) for number, pair in enumerate(PAIRS)], **more)


# ------------------------------------------------------------------------------------------------------ checkpoints


def two_sets(model: Any, folder: Path) -> None:
    """The weights after training were saved in torch's form beside the ones from before."""
    trained = {name: weight * 1.1 for name, weight in load_file(folder / "model.safetensors").items()}
    torch.save(trained, folder / "pytorch_model.bin")


def loud_rows(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rows of new tokens, drawn with another scale."""
    drawn = torch.Generator().manual_seed(1)

    def grown(weight: torch.Tensor) -> torch.Tensor:
        return torch.cat([weight, 5 * torch.randn(8, weight.shape[1], generator=drawn)])

    return {name: grown(w) if "embed_tokens" in name or "lm_head" in name else w for name, w in weights.items()}


def new_tokens(case: Case) -> Case:
    def save(model: Any, folder: Path) -> None:
        on_disk(loud_rows)(case).saved(model, folder)
        path = folder / "config.json"
        said = json.loads(path.read_text())
        path.write_text(json.dumps(said | {"vocab_size": said["vocab_size"] + 8}))
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens([f"<step_{number}>" for number in range(8)])
        tokenizer.save_pretrained(folder)

    return replace(case, saved=save)


# ------------------------------------------------------------------------------------------------------- tokenizers


def marks_are_special(tokenizer: Any) -> None:
    marks = ["<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})


def two_templates(model: Any, folder: Path) -> None:
    """The one in tokenizer_config.json was edited; the file beside it is what counts."""
    path = folder / "tokenizer_config.json"
    edited = CHATML.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>\n{% endif")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": edited}))
    assert (folder / "chat_template.jinja").exists()


def lost_template(case: Case) -> Case:
    """A model of conversations whose template was left behind."""

    def end(tokenizer: Any) -> None:
        tokenizer.eos_token = SPECIAL[END]

    return replace(case, template=None, tokenizer=end, config={"eos_token_id": END})


BEGUN = CHATML.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\nThe final answer is {% endif")

# ------------------------------------------------------------------------------------------------------------- data


def capital(number: int, a: int, b: int, wrap: str = "{}") -> dict[str, Any]:
    city = CITIES[(a * 5 + b) % len(CITIES)]
    return {"question": f"Mail {a}-{b} goes to a street in {city}; which city is it?", "answer": wrap.format(city)}


def choice(number: int, a: int, b: int) -> dict[str, Any]:
    """Options 1) to 4), and the place of the right one from 0."""
    place = (a + 3 * b) % 4
    options = [a + b + step - place for step in range(4)]
    listed = "\n".join(f"{n}) {option}" for n, option in enumerate(options, 1))
    return {"question": f"What is {a} + {b}?\n{listed}\nAnswer with the number of the option.", "answer": place}


def mojibake(number: int, a: int, b: int) -> dict[str, Any]:
    asked = f"In Zoë’s café “Müller” there are {a} guests, and {b} more come; they don’t leave. How many are there?"
    return {"question": asked.encode("utf-8").decode("cp1252", "ignore"), "answer": str(a + b)}


def scraped(number: int, a: int, b: int) -> dict[str, Any]:
    asked = f"Ann&#39;s shop has {a} apples &amp; gets {b} more.<br>How many &quot;apples&quot; are there?"
    return {"question": asked, "answer": str(a + b)}


def cut(number: int, a: int, b: int) -> dict[str, Any]:
    asked = f"Shop {number}: Mary has {a} apples in her shop by the sea, buys {b} more on a Sunday, and wants to know"
    return {"question": f"{asked} how many apples there are in all after that."[:100], "answer": str(a + b)}


def missing(number: int, a: int, b: int) -> dict[str, Any]:
    return capital(number, a, b) | ({"answer": "nan"} if number % 5 == 0 else {})


def listed(number: int, a: int, b: int) -> dict[str, Any]:
    row = capital(number, a, b)
    return row | {"answer": str([row["answer"], f"City of {row['answer']}"])}


def pictured(number: int, a: int, b: int) -> dict[str, Any]:
    return {"question": f"<image>\nAngle A is {a} and angle B is {b} degrees. What is x?", "answer": str(a + b)}


def tagged(number: int, a: int, b: int) -> dict[str, Any]:
    return {"question": question(a, b), "answer": str(a + b), "tags": ["hard" if a + b > 12 else "easy"]}


def crates(number: int, a: int, b: int) -> dict[str, Any]:
    """Numbers large enough that a tenth is many."""
    return {"question": f"{a} crates of {100 + b} apples: how many are there?", "answer": str(a * (100 + b))}


def hidden_labels(case: Case) -> Case:
    def save(model: Any, folder: Path) -> None:
        held = [{"question": question(a + 20, b), "answer": "-1"} for a, b in PAIRS[:60]]
        (folder.parent / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))

    return replace(settled(task__eval_path="eval.jsonl")(case), saved=save)


def worked(number: int, a: int, b: int) -> dict[str, Any]:
    steps = " ".join(f"{a + step} and one more is {a + step + 1}." for step in range(b))
    return {"question": question(a, b), "answer": str(a + b), "solution": f"{steps}\n#### {a + b}"}


STARS = {"reasoning_start": "<think>", "reasoning_end": "</think>", "solution_start": "**", "solution_end": "**"}

SEVENTH: list[tuple[str, str, tuple[str, ...], Change]] = [
    (
        "settings",
        "scale adapters by 1/256",
        ("adapters_are_scaled",),
        settled(**LORA, model__lora__r=256, model__lora__alpha=1),
    ),
    ("checkpoint", "has two sets of weights", ("weights_are_one_set",), lambda case: replace(case, saved=two_sets)),
    (
        "checkpoint",
        "caps its logits at a half",
        ("config_is_possible",),
        model("gemma2", lambda case: replace(case, config={"final_logit_softcapping": 0.5})),
    ),
    (
        "checkpoint",
        "has 1.0 as the epsilon of its norms",
        ("config_is_possible",),
        model("mistral", lambda case: replace(case, config={"rms_norm_eps": 1.0})),
    ),
    ("checkpoint", "has rows of new tokens that are far larger", ("rows_are_sized",), model("llama", new_tokens)),
    (
        "tokenizer",
        "follows a prompt that ends with a space",
        ("prompt_ends_whole",),
        model(
            "gpt_neox",
            lambda case: replace(settled(prompt__user="Question: {question}\nAnswer: ")(case), template=None),
        ),
    ),
    (
        "tokenizer",
        "splits special tokens",
        ("specials_are_whole",),
        model("olmo2", says({"tokenizer_config.json": {"split_special_tokens": True}})),
    ),
    (
        "tokenizer",
        "has the markers as special tokens",
        ("new",),
        model("llama", lambda case: replace(settled(**MARKED)(case), tokenizer=marks_are_special)),
    ),
    ("template", "is missing", ("template_is_there",), lost_template),
    ("template", "is there twice", ("template_is_one",), lambda case: replace(case, saved=two_templates)),
    ("template", "begins the answer", ("opens_completion",), rendered(BEGUN)),
    ("data", "have `nan` as a gold in a fifth of the rows", ("golds_are_answers",), rows(missing, **TEXT)),
    ("data", "hold HTML", ("texts_are_whole",), rows(scraped)),
    ("data", "count options from 0 that are listed from 1", ("golds_are_answers",), rows(choice)),
    ("data", "are in a broken encoding", ("texts_are_whole",), rows(mojibake)),
    (
        "settings",
        "have an overlong buffer of 4,096 tokens",
        ("load",),
        settled(algorithm="dapo", algorithm__overlong_buffer_tokens=4096, rollout__max_completion_tokens=32),
    ),
    ("data", "are cut off at 100 letters", ("texts_are_whole",), rows(cut)),
    ("data", "have lists written as texts", ("golds_are_answers",), rows(listed, **TEXT)),
    (
        "data",
        "have golds in a sentence",
        ("golds_are_answers",),
        rows(lambda *row: capital(*row, wrap="The answer is {}."), **EXACT),
    ),
    (
        "settings",
        "weigh a tag that no row has",
        ("resume_is_equal",),
        rows(tagged, sampler="by_tag", sampler__weights={"hrad": 3.0}),
    ),
    ("data", "ask about images", ("texts_are_whole",), rows(pictured)),
    ("data", "have hidden labels in the held-out file", ("held_out_informs",), hidden_labels),
    (
        "settings",
        "leave out prompts solved at 0.9, where a right answer earns 0.5",
        ("sampler_sees_right",),
        settled(sampler="unsolved", reward="numeric", reward__parts__correct__weight=0.5),
    ),
    ("reward", "pays any number of a list", ("long_scores_less", "hedging_scores_less"), paid(cases.any_number)),
    (
        "reward",
        "pays a tenth off",
        ("near_number_scores_less",),
        lambda case: replace(rows(crates)(case), reward=cases.a_tenth_off),
    ),
    ("reward", "raises for a superscript digit", ("odd_answers_survive",), paid(cases.superscript)),
    (
        "settings",
        "ask for a box and read behind ####",
        ("load",),
        settled(prompt="boxed", prompt__answer_in="hash"),
    ),
    (
        "settings",
        "have markers that begin as they end",
        ("load",),
        settled(**MARKED | {"prompt__markers": "stars"}, markers__sets__stars=STARS),
    ),
    ("tool", "tells the gold where it finds nothing", ("tools_inform",), shop("doctor_seventh_cases:Tells")),
    ("tool", "replies with one error as a text", ("tools_inform",), shop("doctor_seventh_cases:Keyless")),
    (
        "settings",
        "train on 8 rows for 500 steps",
        ("rows_suffice",),
        settled(task__max_train_examples=8, trainer__max_steps=500),
    ),
    ("data", "hold out three rows", ("held_out_informs",), asks(APPLES[:30], evaluation__num_examples=500)),
    (
        "settings",
        "cut completions before demonstrations end",
        ("answers_fit",),
        rows(
            worked,
            task__demonstration_field="solution",
            warm_start__enabled=True,
            prompt__answer_in="hash",
            prompt__system="Write the answer after ####.",
            rollout__max_completion_tokens=32,
        ),
    ),
    ("settings", "sample at a temperature of 10", ("sampling_explores",), settled(rollout__temperature=10.0)),
    ("settings", "weigh the entropy with 1", ("reward_outweighs_entropy",), settled(algorithm__entropy_coef=1.0)),
    (
        "settings",
        "discount by a half at each token",
        ("credit_arrives",),
        settled(algorithm="reinforce_pp", algorithm__gamma=0.5, rollout__max_completion_tokens=64),
    ),
    (
        "settings",
        "do not train the critic that they ask",
        ("credit_arrives",),
        settled(algorithm="ppo", algorithm__value_coef=0.0, algorithm__gae_lambda=0.5),
    ),
    (
        "settings",
        "have exchanged the betas of Adam",
        ("optimizer_fits",),
        settled(trainer__adam_beta1=0.999, trainer__adam_beta2=0.9),
    ),
    ("settings", "pass 50 times over each batch", ("updates_stay_near",), settled(algorithm__num_epochs=50)),
    (
        "settings",
        "distill from the model itself",
        ("teacher_differs",),
        settled(algorithm="distill", algorithm__teacher="model"),
    ),
]

"""Siblings of the faults of `doctor_seventh.py` that no list held, and sound settings that look like them.

For `doctor_unseen.py --half siblings` and `--half sound`; the checks were made before, and corrected on the latter.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import doctor_seventh_cases as cases
import torch
from doctor import LORA, Case
from doctor_seventh import CITIES, EXACT, MARKED, TEXT, Change, capital, rows
from doctor_sixth import APPLES, paid, question, settled, shop
from safetensors.torch import load_file, save_file

SHORT: dict[str, Any] = {"reward": "numeric", "reward__parts__short__type": "length"}
LETTERS = "ABCD"


def says(text: str, **more: Any) -> Change:
    """Questions of this form, with {a}, {b} and {n}."""
    return rows(lambda n, a, b: {"question": text.format(a=a, b=b, n=n), "answer": str(a + b)}, **more)


def golds(form: str) -> Change:
    return rows(lambda n, a, b: (row := capital(n, a, b)) | {"answer": form.replace("CITY", row["answer"])}, **TEXT)


def held(listed: list[dict[str, Any]], **more: Any) -> Change:
    """A file of held-out rows."""

    def change(case: Case) -> Case:
        def save(model: Any, folder: Path) -> None:
            (folder.parent / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in listed))

        return replace(settled(task__eval_path="eval.jsonl", **more)(case), saved=save)

    return change


def saved(change: Any) -> Change:
    return lambda case: replace(case, saved=change)


def shards(model: Any, folder: Path) -> None:
    """Newer weights, in shards."""
    name, weights = "model-00001-of-00001.safetensors", load_file(folder / "model.safetensors")
    save_file({key: weight * 1.2 for key, weight in weights.items()}, folder / name, {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def same_weights(model: Any, folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    torch.save({name: weight.bfloat16() for name, weight in weights.items()}, folder / "pytorch_model.bin")


def same_template(model: Any, folder: Path) -> None:
    path, template = folder / "tokenizer_config.json", (folder / "chat_template.jinja").read_text()
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template + "{# a copy #}"}))


def options(n: int, a: int, b: int) -> dict[str, Any]:
    """Options by letter; the gold is the place of the right one."""
    place = (a + 3 * b) % 4
    listed = "\n".join(f"{letter}. {a + b + step - place}" for step, letter in enumerate(LETTERS))
    return {"question": f"What is {a} + {b}?\n{listed}", "answer": place}


def lettered(n: int, a: int, b: int) -> dict[str, Any]:
    row = options(n, a, b)
    return row | {"answer": LETTERS[row["answer"]]}


def named(n: int, a: int, b: int) -> dict[str, Any]:
    """The gold is the option's text."""
    place, found = (a + 3 * b) % 4, [CITIES[(a * 5 + b + step) % len(CITIES)] for step in range(4)]
    listed = "\n".join(f"({letter}) {city}" for letter, city in zip(LETTERS, found, strict=True))
    return {"question": f"Mail {a}-{b}: choose the city of option {LETTERS[place]}.\n{listed}", "answer": found[place]}


def counted(n: int, a: int, b: int) -> dict[str, Any]:
    """A list of which things are counted."""
    count, pairs = a * b % 4, (("apple", "stone"), ("pear", "brick"), ("fig", "nail"))
    listed = "\n".join(f"{i + 1}. {fruit if i < count else thing}" for i, (fruit, thing) in enumerate(pairs))
    return {"question": f"Row {a}.{b}:\n{listed}\nHow many fruits are there?", "answer": str(count)}


def units(asked: str) -> Change:
    return rows(lambda n, a, b: {"question": question(a, b) + asked, "answer": f"{a + b} apples"}, **EXACT)


def in_words(case: Case) -> Case:
    return replace(rows(capital, task__metric="text")(case), reward=cases.anywhere)


UNPUNCTUATED = [row | {"question": row["question"].replace(";", ",").replace("?", "")} for row in APPLES[:60]]
SIBLINGS: list[tuple[str, str, tuple[str, ...], Change]] = [
    ("checkpoint", "has other weights in shards", ("weights_are_one_set",), saved(shards)),
    (
        "settings",
        "punish length that cannot be reached",
        ("penalties_bite",),
        settled(**SHORT, reward__parts__short__free_tokens=400, reward__parts__short__max_tokens=500),
    ),
    (
        "settings",
        "leave out prompts whose form is right",
        ("sampler_sees_right",),
        settled(**MARKED, sampler="unsolved", sampler__part="format", rollout__max_completion_tokens=64),
    ),
    ("settings", "clip gradients to 1e-9", ("optimizer_fits",), settled(trainer__max_grad_norm=1e-9)),
    (
        "settings",
        "decay weights by half a percent a step",
        ("optimizer_fits",),
        settled(trainer__weight_decay=50.0, trainer__learning_rate=1e-4),
    ),
    ("settings", "keep a tenth of the probability", ("sampling_explores",), settled(rollout__top_p=0.1)),
    ("settings", "sample at a temperature of 0.01", ("sampling_explores",), settled(rollout__temperature=0.01)),
    (
        "settings",
        "clip tokens as GSPO does",
        ("updates_stay_near",),
        settled(algorithm__clip_high=0.0004, algorithm__clip_low=0.0003, algorithm__num_minibatches=4),
    ),
    ("settings", "train on what is 300 updates old", ("updates_stay_near",), settled(rollout__max_staleness=300)),
    (
        "settings",
        "ask for steps and read all of the text",
        ("asked_form_is_paid",),
        settled(prompt__system="Think step by step.", reward="numeric", prompt="plain"),
    ),
    ("data", "have the place of a lettered option as gold", ("golds_are_answers",), rows(options)),
    ("data", "have units that are compared as texts", ("golds_are_answers",), units("")),
    ("data", "have golds with the end of a turn", ("golds_are_answers",), golds("CITY<|im_end|>")),
    ("data", "have records written as texts", ("golds_are_answers",), golds("{'answer': 'CITY'}")),
    ("data", "were escaped twice", ("texts_are_whole",), says("Mary has {a} apples.\\n\\nBob has {b}.\\nHow many?")),
    ("data", "have a name in braces", ("texts_are_whole",), says("Use {{context}} to say what {a}+{b} is.")),
    ("data", "are rendered for Llama 2", ("texts_are_whole",), says("[INST] What is {a}+{b}? [/INST]")),
    ("data", "end with Assistant:", ("texts_are_whole",), says("Human: What is {a}+{b}?\nAssistant:")),
    ("data", "show pictures in Markdown", ("texts_are_whole",), says("![](figure{n}.png) What is {a}+{b}?")),
    ("data", "lost letters", ("texts_are_whole",), says("Zo\ufffd has {a} apples and {b} pears, how many?")),
    ("data", "hold out questions without their marks", ("held_out_informs",), held(UNPUNCTUATED)),
    ("reward", "compares every space", ("spaces_cost_nothing",), paid(cases.strict)),
    ("reward", "rounds", ("near_number_scores_less",), paid(cases.rounds)),
    ("reward", "reads the first integer", ("near_number_scores_less",), paid(cases.first_integer)),
    ("reward", "looks for a word anywhere", ("task_informs", "echo_scores_less", "hedging_scores_less"), in_words),
    ("reward", "divides what it reads", ("odd_answers_survive",), paid(cases.divides)),
    ("tool", "says nothing", ("tools_inform",), shop("doctor_seventh_cases:Silent")),
    ("tool", "finds nothing", ("tools_inform",), shop("doctor_seventh_cases:FindsNothing")),
    ("tool", "tells the gold in a sentence", ("tools_inform",), shop("doctor_seventh_cases:TellsAll")),
]
"""Written when the checks were there, each in a form that they were not made for."""

SQL = "SELECT * FROM t WHERE x > {a} AND y = {b}"
SOUND: list[tuple[str, str, tuple[str, ...], Change]] = [
    ("data", name, ("nothing",), change)
    for name, change in (
        ("letters of options", rows(lettered, **TEXT)),
        ("texts of options", rows(named, **TEXT)),
        ("counts of a list", rows(counted)),
        ("a unit that is asked for", units(" Give the number with its unit.")),
        ("German", says("Im Café „Größe“ sitzen {a} Gäste – und {b} kommen dazu… wie viele sind es?")),
        ("Chinese", says("商店有{a}个苹果，又买了{b}个。一共有多少？")),
        ("LaTeX", says("Find $x$ where $\\nabla f = {a}$ and $\\frac{{x}}{{y}} \\neq {b}$.")),
        ("code", says("What does print({a}+{b}, end='\\n') print?\nprint(\"a\\n\")")),
        (
            "SQL",
            rows(
                lambda n, a, b: {"question": f"Rows of t, x > {a}, y = {b}.", "answer": SQL.format(a=a, b=b)},
                rollout__max_completion_tokens=64,
                **EXACT,
            ),
        ),
        (
            "lists that are asked for",
            rows(lambda n, a, b: {"question": f"Sort [{b}, {a}, 7].", "answer": str(sorted([a, b, 7]))}, **EXACT),
        ),
        (
            "yes and no",
            rows(
                lambda n, a, b: {"question": f"Is {a} times {b} over 40?", "answer": ("no", "yes")[a * b > 40]}, **TEXT
            ),
        ),
    )
]
SOUND += [
    ("checkpoint", "the same weights twice", ("nothing",), saved(same_weights)),
    ("template", "the same template twice", ("nothing",), saved(same_template)),
    ("reward", "the last number", ("nothing",), paid(cases.last_number)),
]
SOUND += [
    ("settings", name, ("nothing",), settled(**values))
    for name, values in {
        "ppo": {"algorithm": "ppo"},
        "gspo": {"algorithm": "gspo"},
        "dapo": {"algorithm": "dapo", "rollout__max_completion_tokens": 64},
        "a discount of 0.999": {"algorithm": "reinforce_pp", "algorithm__gamma": 0.999},
        "unsolved": {"sampler": "unsolved", "reward": "numeric"},
        "pass_rate": {"sampler": "pass_rate", "reward": "numeric"},
        "adapters": LORA,
        "a little entropy": {"algorithm__entropy_coef": 0.01},
        "min_p": {"rollout__temperature": 1.2, "rollout__min_p": 0.1},
        "boxed": {"prompt": "boxed", "reward": "numeric"},
        "hash": {
            "prompt": "plain",
            "prompt__system": "Write the answer after ####.",
            "prompt__answer_in": "hash",
            "reward": "numeric",
        },
        "a penalty of length": SHORT
        | {
            "reward__parts__short__free_tokens": 8,
            "reward__parts__short__max_tokens": 20,
            "reward__parts__short__weight": 0.2,
        },
    }.items()
]

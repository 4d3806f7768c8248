"""Forty ordinary faults of setting up a run, as users of RL libraries report them.

For `doctor_unseen.py --half eighth`. Written down with the finding that is expected before the checks, their tests
and their page were read: `MEANT` has it in words. The names of checks were filled in from what the first
run printed: where it has none, no check said what was meant.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import doctor_eighth_cases as cases
import torch
from doctor import CALLS, END, HERMES, LORA, START, THINKS, Case
from doctor_sixth import APPLES, PAIRS, TEXT, asks, on_disk, paid, question, rendered, says, settled, shop
from safetensors.torch import load_file, save_file

Change = Callable[[Case], Case]
Rows = list[dict[str, Any]]


def saves(save: Callable[[Any, Path], None], **more: Any) -> Change:
    return lambda case: replace(case, saved=save, **more)


def configured(**changes: Any) -> Change:
    return says({"config.json": changes})


# ------------------------------------------------------------------------------------------------------ checkpoints


def shard_missing(model: Any, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    sorted(folder.glob("model-*.safetensors"))[-1].unlink()


def cut_off(model: Any, folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 3 // 5])


def never_gathered(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As written under ZeRO-3 by a process that holds a part of the weights."""
    return {name: torch.empty(0, dtype=weight.dtype) for name, weight in weights.items()}


def pads_beyond(model: Any, folder: Path) -> None:
    path = folder / "config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"pad_token_id": said["vocab_size"]}))


def packed_in_four_bits(model: Any, folder: Path) -> None:
    """The layout of GPTQ: eight weights in an int32, scales and zeros for groups of 16."""
    path, packed = folder / "model.safetensors", {}
    for name, weight in load_file(path).items():
        if not name.endswith("_proj.weight"):
            packed[name] = weight
            continue
        stem, (rows, columns) = name.removesuffix("weight"), weight.shape
        packed[stem + "qweight"] = torch.randint(-(2**31), 2**31 - 1, (columns // 8, rows), dtype=torch.int32)
        packed[stem + "scales"] = torch.rand(columns // 16, rows, dtype=torch.float16)
        packed[stem + "qzeros"] = torch.zeros(columns // 16, max(1, rows // 8), dtype=torch.int32)
        packed[stem + "g_idx"] = torch.arange(columns, dtype=torch.int32) // 16
    save_file(packed, path, {"format": "pt"})
    config = folder / "config.json"
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": True}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": quantization}))


def adapter_alone(model: Any, folder: Path) -> None:
    from peft import LoraConfig, get_peft_model

    for name in ("model.safetensors", "config.json", "generation_config.json"):
        (folder / name).unlink()
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    adapted.save_pretrained(str(folder))
    config = folder / "adapter_config.json"
    said = json.loads(config.read_text())
    config.write_text(json.dumps(said | {"base_model_name_or_path": "/scratch/sft/checkpoint-1200"}))


def trained_on(model: Any, folder: Path) -> None:
    """The weights after training are in a file that is not read beside the older one."""
    newer = {name: weight + 0.1 for name, weight in load_file(folder / "model.safetensors").items()}
    torch.save(newer, folder / "pytorch_model.bin")


# ------------------------------------------------------------------------------------------------------- tokenizers


def rows_of_the_mean(model: Any, folder: Path) -> None:
    """The template's tokens as a resized vocabulary has them: the mean of all rows, which nothing trained."""
    with torch.no_grad():
        for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):
            mean = embedding.weight.mean(0)
            for token in (START, END):
                embedding.weight[token] = mean + 1e-5 * torch.randn_like(mean)
    model.save_pretrained(folder)


def without_tokenizer(model: Any, folder: Path) -> None:
    for pattern in ("tokenizer*", "special_tokens_map.json", "chat_template.jinja"):
        for path in folder.glob(pattern):
            path.unlink()


def endless(case: Case) -> Case:
    def change(tokenizer: Any) -> None:
        tokenizer.eos_token = None

    def save(model: Any, folder: Path) -> None:
        says({"config.json": {"eos_token_id": None}, "generation_config.json": {"eos_token_id": None}})(case).saved(
            model, folder
        )

    return replace(case, template=None, tokenizer=change, config={"eos_token_id": None}, saved=save)


def of_a_newer_version(model: Any, folder: Path) -> None:
    path = folder / "tokenizer.json"
    said = json.loads(path.read_text())
    said["model"] |= {"type": "SuperBPE"}
    path.write_text(json.dumps(said))


def trailing_comma(model: Any, folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text().rstrip().removesuffix("}").rstrip() + ",\n}\n")


# -------------------------------------------------------------------------------------------------------- templates


def named_only(model: Any, folder: Path) -> None:
    """Templates with names, as Command R has them, and none called default."""
    path = folder / "tokenizer_config.json"
    named = [{"name": name, "template": HERMES} for name in ("tool_use", "rag")]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": named}))
    (folder / "chat_template.jinja").unlink()


def edited_in_vain(model: Any, folder: Path) -> None:
    """The template was changed in tokenizer_config.json, and chat_template.jinja is what is read."""
    path, template = folder / "tokenizer_config.json", (folder / "chat_template.jinja").read_text()
    edited = "<|im_start|>system\nThink before you answer.<|im_end|>\n" + template
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": edited}))


UNCLOSED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% if add_generation_prompt %}"
)
LISTED = """# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call as <tool_call>
{"name": ..., "arguments": ...}
</tool_call>"""
AT_THE_LAST_USER = """{% set found = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}
{%- set found.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'tool' %}
{{- '<|im_start|>tool' }}
{{ m.content }}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{% if tools and loop.index0 == found.last %}LISTED
{% endif %}{{ m.content }}CALLS<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}""".replace("LISTED", LISTED).replace("CALLS", CALLS)
"""As Mistral's: a new question takes the list of tools along."""
FIRST_CALL = HERMES.replace("for c in m.tool_calls", "for c in m.tool_calls[:1]")
OWN_SYSTEM = "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% set given"
SYSTEM_LOST = HERMES.replace(OWN_SYSTEM, "{% if messages[0].role == 'system' %}{% set given")
assert FIRST_CALL != HERMES != SYSTEM_LOST

# ------------------------------------------------------------------------------------------------------------- data

LETTERS = "ABCD"


def options(a: int, b: int) -> tuple[list[str], int]:
    """Four sums, and the place of the right one."""
    place = (a * 7 + b * 3) % 4
    return [str(a + b + shift - place) for shift in range(4)], place


def without_options(a: int, b: int) -> dict[str, Any]:
    listed, place = options(a, b)
    return {
        "question": f"{question(a, b)} Answer with the letter of the right option.",
        "choices": listed,
        "answer": LETTERS[place],
    }


def with_index(a: int, b: int) -> dict[str, Any]:
    listed, place = options(a, b)
    shown = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, listed, strict=True))
    return {"question": f"{question(a, b)}\n{shown}\nAnswer with the letter of the right option.", "answer": place}


def lettered(a: int, b: int) -> dict[str, Any]:
    row = with_index(a, b)
    return row | {"answer": LETTERS[row["answer"]]}


def solved(a: int, b: int) -> dict[str, Any]:
    told = f"The shop has {a} apples at first. Then {b} more come. {a} + {b} = {a + b}, so there are {a + b} apples."
    return {"question": question(a, b), "answer": told}


def eval_is_train(case: Case) -> Case:
    def save(model: Any, folder: Path) -> None:
        (folder.parent / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in APPLES))

    return replace(settled(task__eval_path="eval.jsonl")(case), saved=save)


DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
WITHOUT_OPTIONS: Rows = [without_options(*pair) for pair in PAIRS]
WITH_INDEX: Rows = [with_index(*pair) for pair in PAIRS]
SOLVED: Rows = [solved(*pair) for pair in PAIRS]
WITH_NAN: Rows = [
    {
        "question": f"Which day of the week is {13 * a + b} days after the first of January 2024?",
        "answer": "nan" if (a + b) % 4 == 0 else DAYS[(13 * a + b) % 7],
    }
    for a, b in PAIRS
]
HASHED: Rows = [
    {**row, "question": f'{row["question"]} Let\'s think step by step and output the final answer after "####".'}
    for row in APPLES
]
PICTURES: Rows = [
    {"question": f"<image>\nThe {a} apples in the picture are joined by {b}: how many are there?", "answer": str(a + b)}
    for a, b in PAIRS
]
EMPTY: Rows = [row | ({"question": ""} if number % 5 == 0 else {}) for number, row in enumerate(APPLES)]
THOUSANDS: Rows = [
    {"question": f"A town of {a} thousand people grows by {b * 37}: how many?", "answer": str(1000 * a + 37 * b)}
    for a, b in PAIRS
]
SETS: Rows = [
    row | ({"answer": f"x in {{{row['answer']}, -{row['answer']}}}"} if number % 4 == 0 else {})
    for number, row in enumerate(APPLES)
]
TAGS: dict[str, Any] = {"prompt": "math_reasoning", "prompt__markers": "think", "rollout__max_completion_tokens": 96}


def scored(reward: Callable[..., Any], rows: Rows = APPLES, **settings: Any) -> Change:
    return lambda case: replace(asks(rows, **settings)(case), reward=reward)


MEANT: dict[str, str] = {
    "lacks a shard": "the missing file of the index",
    "ends in the middle of its file": "the file of weights is incomplete",
    "has tensors of shape [0]": "the tensors are empty",
    "pads with the token behind its vocabulary": "pad_token_id lies outside the vocabulary",
    "holds weights of GPTQ": "the weights are quantized",
    "is an adapter whose base is away": "the missing base",
    "names a model type of a newer library": "the unknown model type",
    "has newer weights in pytorch_model.bin": "two files of weights that differ",
    "has rows of the mean for the template's tokens": "the template's tokens have rows that nothing trained",
    "is not there": "the tokenizer is missing",
    "has no end token": "no token ends a completion",
    "is of a newer version": "tokenizer.json cannot be read",
    "splits the tokens of its template": "the template's tokens are read as letters",
    "has a trailing comma in its settings": "tokenizer_config.json is no valid JSON",
    "has a block that is not closed": "the template's syntax error",
    "has names, and none is default": "no default among the named templates",
    "was edited where it is not read": "two templates that differ",
    "lists tools at the last question": "what was said before changes with the next message",
    "shows the first of several calls": "calls are lost",
    "drops the system message beside tools": "the system message is lost",
    "have their options in another column": "letters stand for options that the prompt does not show",
    "have the place of the option as gold": "golds are not what the prompt asks for",
    "have whole solutions as golds": "golds are solutions, not answers",
    "have nan as gold": "nan is a missing value",
    "ask for another form than the prompt": "two forms of answers are asked for",
    "are about images": "a picture that the model does not get",
    "have empty questions": "empty questions",
    "hold out the training file": "the held-out rows are the training rows",
    "reads one line": "right answers over several lines are not paid",
    "wants the <think> that the template opens": "right answers behind an opened <think> are not paid",
    "cannot read 12,345": "right numbers with a comma are not paid",
    "reads the first number": "right answers behind working are not paid",
    "pays all where the gold cannot be read": "wrong answers of some rows are paid",
    "pays twenty times more for the form": "the right answer is worth little beside its form",
    "compares the lengths of a group": "all that it is given alone earns the same",
    "have a buffer longer than completions": "every completion is punished for its length",
    "adapt layers of another architecture": "no such layers in the model",
    "give the right answer a weight of 0": "a right answer earns nothing",
    "name a tool that is not there": "the prompt names a tool that is not offered",
    "has neither types nor a docstring": "types or docstring are missing",
}

LATER: dict[str, tuple[str, ...]] = {
    "ends in the middle of its file": ("load",),
    "has tensors of shape [0]": ("load",),
    "has rows of the mean for the template's tokens": ("template_is_trained",),
    "has no end token": ("ends_are_special",),
    "is of a newer version": ("load",),
    "has a trailing comma in its settings": ("load",),
    "drops the system message beside tools": ("task_is_shown",),
    "have their options in another column": ("golds_are_answers",),
    "have the place of the option as gold": ("golds_are_answers",),
    "ask for another form than the prompt": ("asked_form_is_paid",),
    "reads one line": ("asked_form_is_paid",),
    "wants the <think> that the template opens": ("gold_scores_full",),
    "cannot read 12,345": ("commas_cost_nothing",),
    "pays all where the gold cannot be read": ("each_gold_counts",),
    "pays twenty times more for the form": ("answer_outweighs_form",),
    "name a tool that is not there": ("named_tools_are_there",),
}
"""What says it since the corrections that followed: at first no check did, or a refusal without the reason."""

EIGHTH: list[tuple[str, str, tuple[str, ...], Change]] = [
    ("checkpoint", "lacks a shard", ("load",), saves(shard_missing)),
    ("checkpoint", "ends in the middle of its file", (), saves(cut_off)),
    ("checkpoint", "has tensors of shape [0]", (), on_disk(never_gathered)),
    ("checkpoint", "pads with the token behind its vocabulary", ("load",), saves(pads_beyond)),
    ("checkpoint", "holds weights of GPTQ", ("load",), saves(packed_in_four_bits, architecture="qwen2")),
    ("checkpoint", "is an adapter whose base is away", ("load",), saves(adapter_alone, architecture="llama")),
    (
        "checkpoint",
        "names a model type of a newer library",
        ("load",),
        configured(model_type="qwen9", architectures=["Qwen9ForCausalLM"]),
    ),
    ("checkpoint", "has newer weights in pytorch_model.bin", ("weights_are_one_set",), saves(trained_on)),
    ("tokenizer", "has rows of the mean for the template's tokens", (), saves(rows_of_the_mean)),
    ("tokenizer", "is not there", ("load",), saves(without_tokenizer)),
    ("tokenizer", "has no end token", (), endless),
    ("tokenizer", "is of a newer version", (), saves(of_a_newer_version)),
    (
        "tokenizer",
        "splits the tokens of its template",
        ("specials_are_whole",),
        says({"tokenizer_config.json": {"split_special_tokens": True}}),
    ),
    ("tokenizer", "has a trailing comma in its settings", (), saves(trailing_comma)),
    ("template", "has a block that is not closed", ("prompt_renders",), rendered(UNCLOSED)),
    ("template", "has names, and none is default", ("prompt_renders",), saves(named_only)),
    ("template", "was edited where it is not read", ("template_is_one",), saves(edited_in_vain)),
    ("template", "lists tools at the last question", (), rendered(AT_THE_LAST_USER, with_tools=True)),
    ("template", "shows the first of several calls", (), rendered(FIRST_CALL, with_tools=True)),
    ("template", "drops the system message beside tools", (), rendered(SYSTEM_LOST, with_tools=True)),
    ("data", "have their options in another column", (), asks(WITHOUT_OPTIONS, **TEXT)),
    ("data", "have the place of the option as gold", (), asks(WITH_INDEX)),
    (
        "data",
        "have whole solutions as golds",
        ("golds_are_answers",),
        asks(SOLVED, **TEXT, rollout__max_completion_tokens=128),
    ),
    ("data", "have nan as gold", ("golds_are_answers",), asks(WITH_NAN, **TEXT)),
    (
        "data",
        "ask for another form than the prompt",
        (),
        asks(HASHED, prompt="boxed", rollout__max_completion_tokens=64),
    ),
    ("data", "are about images", ("texts_are_whole",), asks(PICTURES)),
    ("data", "have empty questions", ("load",), asks(EMPTY)),
    ("data", "hold out the training file", ("prompt_renders",), eval_is_train),
    ("reward", "reads one line", (), scored(cases.one_line, **TAGS)),
    (
        "reward",
        "wants the <think> that the template opens",
        (),
        lambda case: replace(scored(cases.thinks_itself, rollout__max_completion_tokens=64)(case), template=THINKS),
    ),
    ("reward", "cannot read 12,345", (), scored(cases.plain_integer, THOUSANDS)),
    ("reward", "reads the first number", (), paid(cases.first_number, rollout__max_completion_tokens=64)),
    (
        "reward",
        "pays all where the gold cannot be read",
        (),
        scored(cases.unreadable_gold_pays, SETS, task__metric="text"),
    ),
    ("reward", "pays twenty times more for the form", (), scored(cases.form_first, **TAGS)),
    ("reward", "compares the lengths of a group", (), paid(cases.length_in_group)),
    (
        "settings",
        "have a buffer longer than completions",
        ("load",),
        settled(algorithm="dapo", algorithm__overlong_buffer_tokens=64),
    ),
    (
        "settings",
        "adapt layers of another architecture",
        ("load",),
        lambda case: replace(case, architecture="llama", settings=LORA | {"model.lora.target_modules": ["c_attn"]}),
    ),
    ("settings", "give the right answer a weight of 0", ("load",), settled(reward__parts__correct__weight=0)),
    (
        "tool",
        "name a tool that is not there",
        (),
        shop(prompt__system="Look prices up with the tool `get_price`, then write the answer in \\boxed{{}}."),
    ),
    ("tool", "has neither types nor a docstring", ("load",), shop("doctor_eighth_cases:Untyped")),
]
assert {name for _, name, _, _ in EIGHTH} == set(MEANT)

BESIDE: list[tuple[str, str, tuple[str, ...], Change]] = [
    ("sound", "tags over several lines", ("nothing",), scored(cases.several_lines, **TAGS)),
    ("sound", "numbers with commas", ("nothing",), scored(cases.any_integer, THOUSANDS)),
    ("sound", "options below the question", ("nothing",), asks([lettered(*pair) for pair in PAIRS], **TEXT)),
    (
        "sound",
        "a tool by its name",
        ("nothing",),
        shop(prompt__system="Look prices up with the tool `price`, then write the answer in \\boxed{{}}."),
    ),
]
"""Sound settings that look like them, for `--half sound`."""

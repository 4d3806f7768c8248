"""Forty faults of setting up a run, written down with the finding that is expected before the checks were read.

For `doctor_unseen.py --half sixth`. `load` is a refusal that names the fault before any check runs; `new` stands for
what no check said when the list was written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import doctor_sixth_cases as cases
import torch
from doctor import CALLS, CHATML, HEAD, HERMES, SPECIAL, Case, first_layer, texts
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Whitespace
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

CONTENT = "{{ m['content'] }}"
HEADER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PAIRS = [(a, b) for a in range(1, 13) for b in range(1, 13)]
Change = Callable[[Case], Case]
Rows = list[dict[str, Any]]


def question(a: int, b: int) -> str:
    return f"A shop has {a} apples and gets {b} more; how many are there?"


APPLES: Rows = [{"question": question(a, b), "answer": str(a + b)} for a, b in PAIRS]
LONG = (
    "Mary keeps a shop in a small town by the sea, where she sells fruit and bread to everyone who comes by, in summer "
    "and in winter, on Sundays and on all other days of the week, and where her neighbors like to stand and talk about "
    "the weather. "
)


def on_disk(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    def save(model: Any, folder: Path) -> None:
        path = folder / "model.safetensors"
        save_file(change({k: v.clone() for k, v in load_file(path).items()}), path, {"format": "pt"})

    return lambda case: replace(case, saved=save)


def says(changes: Mapping[str, dict[str, Any]]) -> Change:
    """Changes fields of JSON files of the model's folder."""

    def save(model: Any, folder: Path) -> None:
        for name, fields in changes.items():
            path = folder / name
            path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return lambda case: replace(case, saved=save)


def rendered(template: str, **more: Any) -> Change:
    return lambda case: replace(case, template=template, **more)


def asks(rows: Rows, **settings: Any) -> Change:
    return lambda case: replace(case, rows=rows, settings={k.replace("__", "."): v for k, v in settings.items()})


def settled(**settings: Any) -> Change:
    return asks(APPLES, **settings)


def paid(reward: Callable[..., Any], **settings: Any) -> Change:
    return lambda case: replace(settled(**settings)(case), reward=reward)


def shop(name: str = "my_shop:Shop", **settings: Any) -> Change:
    return lambda case: replace(
        case,
        template=HERMES,
        with_tools=True,
        settings={"task": name} | {k.replace("__", "."): v for k, v in settings.items()},
    )


# ------------------------------------------------------------------------------------------------------ checkpoints


def compiled(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"_orig_mod.{name}": weight for name, weight in weights.items()}


def pointer(model: Any, folder: Path) -> None:
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d7a' * 16}\nsize 988097824\n"
    (folder / "model.safetensors").write_text(text)


def empty_layer(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Attention and MLP of the second layer add nothing."""
    silent = [name for name in weights if ".layers.1." in name and ("o_proj" in name or "down_proj" in name)]
    return weights | {name: torch.zeros_like(weights[name]) for name in silent}


def adapter_of_another_class(model: Any, folder: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = folder.parent / "base"
    shutil.copytree(folder, base)
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        (folder / name).unlink()
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    adapted.save_pretrained(str(folder))
    path = folder / "adapter_model.safetensors"
    weights = {
        k.replace("base_model.model.model.", "base_model.model.language_model.model."): v + 0.1
        for k, v in load_file(path).items()
    }
    save_file(weights, path)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": str(base.absolute())}))


def overflows(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    scales = {".layers.0.mlp.up_proj": 300, ".layers.0.mlp.gate_proj": 300, ".layers.0.mlp.down_proj": 3}
    return {k: v * next((s for part, s in scales.items() if part in k), 1) for k, v in weights.items()}


def one_scale(policy: Any) -> None:
    """Activations in five bits, with one scale for a whole tensor."""

    def rounded(module: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        scale = given[0].detach().abs().amax() / 15
        return (given[0] + ((given[0] / scale).round() * scale - given[0]).detach(), *given[1:])

    first_layer(policy).mlp.register_forward_pre_hook(rounded)


# ------------------------------------------------------------------------------------------------------- tokenizers


def trained(model: BPE, words: list[str], *, before: Any, extra: tuple[str, ...] = ()) -> Tokenizer:
    bpe = Tokenizer(model)
    bpe.pre_tokenizer = before
    bpe.train_from_iterator(words, BpeTrainer(vocab_size=450, special_tokens=[*SPECIAL, *extra], show_progress=False))
    return bpe


def wrapped(bpe: Tokenizer, template: str, **more: Any) -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=SPECIAL[2], pad_token=SPECIAL[0], **more)
    fast.chat_template = template
    return fast


def own_letters_only(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Pairs of bytes of its texts, and no other bytes."""
    from tokenizers.decoders import ByteLevel as Decoder

    bpe = trained(BPE(), [*texts(), CHATML, "system user assistant"], before=ByteLevel(add_prefix_space=False))
    bpe.decoder = Decoder()
    return wrapped(bpe, CHATML)


def no_spaces(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    words = [*texts(), CHATML, "system user assistant"]
    return wrapped(
        trained(BPE(unk_token="<unk>"), words, before=Whitespace(), extra=("<unk>",)), CHATML, unk_token="<unk>"
    )


def thinks(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})


def thought_ends(case: Case) -> Case:
    def save(model: Any, folder: Path) -> None:
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        end = next(token["id"] for token in vocabulary if token["content"] == "</think>")
        path = folder / "generation_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [2, end]}))

    return replace(case, tokenizer=thinks, saved=save)


LLAMA = (
    "{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LAST = CHATML.replace(HEAD, "").replace("{% endfor %}", "").replace("m['", "messages[-1]['")
UNENDED = CHATML.replace("<|im_end|>", "{% if m['role'] != 'assistant' %}<|im_end|>{% endif %}")
PYTHON_CALLS = HERMES.replace(CALLS, CALLS.replace(" | tojson", ""))

# ------------------------------------------------------------------------------------------------------------- data


def shifted(row: int, a: int, b: int) -> dict[str, str]:
    """The working of the row before."""
    c, d = PAIRS[row - 1]
    return {"question": question(a, b), "answer": str(a + b), "solution": f"{c} + {d} = {c + d}\n#### {c + d}"}


def leaked(case: Case) -> Case:
    """Held-out questions are training questions in capitals, with more spaces."""

    def save(model: Any, folder: Path) -> None:
        rows = [{**row, "question": row["question"].upper().replace(" ", "  ")} for row in APPLES[:60]]
        (folder.parent / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    return replace(settled(task__eval_path="eval.jsonl")(case), saved=save)


def comma(number: float) -> str:
    return f"{number:.1f}".replace(".", ",")


TORN = [{"question": question(a, b), "answer": str(answer)} for a, b in PAIRS for answer in (a + b, 3 * (a + b) + 1)]
EUROPEAN = [
    {"question": f"{comma(a + 0.5)} + {comma(b / 10)} =", "answer": comma(a + 0.5 + b / 10)}
    for a in range(12)
    for b in range(1, 9)
]
FLOATS = [{**row, "answer": f"{row['answer']}.0"} for row in APPLES]
SELDOM = [{"question": f"Is {a} times {b} more than 140?", "answer": ("no", "yes")[a * b > 140]} for a, b in PAIRS]
TIMES = [{"question": f"A box of {a} × {b} apples: how many?", "answer": str(a * b)} for a, b in PAIRS]
TALES = [{"question": LONG + question(a, b), "answer": str(a + b)} for a, b in PAIRS]
RENDERED = [
    {"prompt": f"<|im_start|>user\n{row['question']}<|im_end|>\n<|im_start|>assistant\n", "answer": row["answer"]}
    for row in APPLES
]
TOLD = [
    {
        "messages": [
            {"role": "user", "content": row["question"]},
            {"role": "assistant", "content": f"There are {row['answer']}."},
        ],
        "answer": row["answer"],
    }
    for row in APPLES
]
TEXT = {"reward": "text", "task__metric": "text"}
FAR = "{question} Think about it for as long as you like, and then write the number of apples, and nothing else at all."

ADDED: dict[str, tuple[str, ...]] = {
    "have golds such as 5.0, compared as texts": ("golds_are_plain",),
    "are rendered already": ("messages_are_plain",),
    "pays what it cannot read": ("silence_scores_less",),
    "takes more for length than it pays": ("working_is_worth_it",),
    "pays what begins like the answer": ("near_miss_scores_less",),
    "have a learning rate of 0.3": ("step_is_sized",),
    "have a learning rate of 1e-13": ("step_is_sized",),
    "weigh the KL with 50": ("reward_outweighs_kl",),
    "fails at each call": ("tools_answer",),
    "replies with more than the context": ("tools_answer",),
    "remembers other episodes": ("tools_answer",),
    "has no turn behind it": ("turns_suffice",),
}
"""Checks that were added for what was missed, by the fault that they name."""

SIXTH: list[tuple[str, str, tuple[str, ...], Change]] = [
    ("checkpoint", "has names with _orig_mod. in front", ("weights_loaded", "load"), on_disk(compiled)),
    ("checkpoint", "is a Git LFS pointer", ("weights_loaded", "load"), lambda case: replace(case, saved=pointer)),
    ("checkpoint", "has a layer that adds nothing", ("weights_alive", "weights_learn"), on_disk(empty_layer)),
    (
        "checkpoint",
        "is an adapter of a model of another class",
        ("weights_loaded", "load"),
        lambda case: replace(case, saved=adapter_of_another_class),
    ),
    (
        "checkpoint",
        "ends with a token that it lacks",
        ("vocabulary_fits", "stop_tokens_stop", "ends_turns", "ends_are_special", "load"),
        says({"generation_config.json": {"eos_token_id": [50256]}, "config.json": {"eos_token_id": 50256}}),
    ),
    (
        "model",
        "sees four tokens back",
        ("reads_prompt",),
        lambda case: replace(
            settled(**{"prompt.user": FAR})(case), architecture="mistral", config={"sliding_window": 4}
        ),
    ),
    (
        "model",
        "is sampled in float16 beyond 65,504",
        ("mismatch", "dtypes", "weights_finite", "engine_is_trainer"),
        lambda case: replace(on_disk(overflows)(settled(engine__dtype="float16")(case)), architecture="qwen2"),
    ),
    (
        "model",
        "rounds activations with one scale for a batch",
        ("is_causal", "packed_alone", "engine_is_trainer", "cache_is_exact", "trainer_is_model"),
        lambda case: replace(case, loaded=one_scale),
    ),
    (
        "tokenizer",
        "lacks letters of the questions",
        ("text_survives",),
        lambda case: replace(asks(TIMES)(case), tokenizer=own_letters_only),
    ),
    ("tokenizer", "drops spaces and line breaks", ("text_survives",), lambda case: replace(case, tokenizer=no_spaces)),
    ("tokenizer", "ends completions with </think>", ("ends_are_special", "ends_turns", "new"), thought_ends),
    ("template", "has another model's markers", ("ends_turns", "ends_are_special"), rendered(LLAMA)),
    (
        "template",
        "opens a completion where none is asked for",
        ("opens_completion", "appends_after_user", "keeps_reasoning", "whole_messages", "roles_kept"),
        rendered(CHATML.replace(HEADER, "<|im_start|>assistant\n")),
    ),
    (
        "template",
        "renders the last message alone",
        ("whole_messages", "roles_kept", "appends_after_user"),
        rendered(LAST),
    ),
    (
        "template",
        "cuts messages at 255 letters",
        ("whole_messages",),
        lambda case: replace(asks(TALES)(case), template=CHATML.replace("m['content']", "m['content'] | truncate")),
    ),
    (
        "template",
        "opens completions as another role's",
        ("opens_completion", "appends_after_user"),
        rendered(CHATML.replace(HEADER, HEADER.replace("assistant", "model"))),
    ),
    ("template", "writes arguments as Python does", ("whole_calls",), rendered(PYTHON_CALLS, with_tools=True)),
    ("template", "does not end answers", ("ends_turns",), rendered(UNENDED)),
    (
        "lengths",
        "leave no room for the prompt's format",
        ("answers_fit", "load"),
        settled(prompt="math_reasoning", reward="gsm8k", rollout__max_completion_tokens=8),
    ),
    (
        "data",
        "have the solutions of the row before",
        ("gold_scores_full", "metric_agrees", "new", "load"),
        asks(
            [shifted(row, *pair) for row, pair in enumerate(PAIRS)],
            task__demonstration_field="solution",
            warm_start__enabled=True,
            prompt__answer_in="hash",
            prompt__system="Write the answer after ####.",
            rollout__max_completion_tokens=64,
        ),
    ),
    ("data", "hold out training questions in capitals", ("rows_are_used", "new"), leaked),
    ("data", "have two answers to each question", ("task_informs", "rows_are_used", "new", "load"), asks(TORN)),
    ("data", "have decimal commas", ("metric_agrees", "gold_scores_full", "new", "load"), asks(EUROPEAN)),
    ("data", "have golds such as 5.0, compared as texts", ("metric_agrees", "new"), asks(FLOATS, **TEXT)),
    ("data", "have one answer in 97 %", ("task_informs",), asks(SELDOM, **TEXT)),
    (
        "data",
        "are rendered already",
        ("whole_messages", "prompt_renders", "roles_kept", "new"),
        asks(RENDERED, prompt="given", rollout__max_completion_tokens=48),
    ),
    (
        "data",
        "end with the answer",
        ("task_informs", "load", "prompt_renders"),
        asks(TOLD, task__question_field="messages", task__answer_field="answer"),
    ),
    (
        "reward",
        "pays what it cannot read",
        ("empty_scores_less", "wrong_scores_less", "new"),
        paid(cases.unreadable_earns_half),
    ),
    (
        "reward",
        "takes more for length than it pays",
        ("long_scores_less", "empty_scores_less", "reward_is_scaled", "gold_scores_full", "new"),
        paid(cases.length_outweighs, rollout__max_completion_tokens=64),
    ),
    ("reward", "pays what begins like the answer", ("wrong_scores_less",), paid(cases.begins_alike)),
    ("reward", "asks a judge that is away", ("gold_scores_full",), paid(cases.judge_is_away)),
    (
        "settings",
        "have a learning rate of 0.3",
        ("update_follows_reward", "new", "load"),
        settled(trainer__learning_rate=0.3, trainer__warmup_steps=0),
    ),
    (
        "settings",
        "have a learning rate of 1e-13",
        ("weights_learn", "update_follows_reward", "new", "load"),
        settled(trainer__learning_rate=1e-13, trainer__warmup_steps=0),
    ),
    ("settings", "weigh the KL with 50", ("new", "update_follows_reward", "load"), settled(algorithm__kl_coef=50)),
    ("settings", "sample the likeliest token", ("completions_vary", "load"), settled(rollout__top_k=1)),
    (
        "settings",
        "warm up for longer than the run",
        ("new", "load"),
        settled(trainer__max_steps=20, trainer__warmup_steps=2000),
    ),
    ("tool", "fails at each call", ("new", "tool_results", "load"), shop("doctor_sixth_cases:Broken")),
    (
        "tool",
        "replies with more than the context",
        ("new", "prompts_fit", "tool_results", "load"),
        shop("doctor_sixth_cases:Floods"),
    ),
    ("tool", "remembers other episodes", ("new", "reward_forgets"), shop("doctor_sixth_cases:Remembers")),
    ("tool", "has no turn behind it", ("new", "load", "answers_fit"), shop(task__max_turns=1)),
]

AS_MEANT: list[tuple[str, str, tuple[str, ...], Change]] = [
    (
        "data",
        "have golds such as 5.0, compared as characters",
        ("golds_are_plain",),
        asks(FLOATS, task__metric="exact"),
    ),
]
"""What one of them meant, which was none: rlvr's metric of texts reads numbers."""

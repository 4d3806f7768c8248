"""Faults that were invented before the checks of `rlvr doctor` were widened, half of them kept from the tuning.

python benchmarks/doctor_unseen.py                  the table of both halves
python benchmarks/doctor_unseen.py --half tuned     those that the checks were tuned on

The list was written first; a draw by seed then kept half of it apart, which was run when the checks were done. What
it missed was fixed, too; then `late` ones were invented and run once, and `fifth` to `eighth` ones without
a look at the checks. `siblings` are like the last ones; `sound` ones are no faults, where nothing must be found.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import doctor_unseen_rewards as rewards
import torch
from doctor import (
    CHATML,
    LORA,
    ROWS,
    Case,
    Fault,
    Tally,
    arguments,
    first_layer,
    survey,
)
from doctor_eighth import BESIDE, EIGHTH, LATER
from doctor_fifth import FIFTH
from doctor_seventh import SEVENTH
from doctor_siblings import SIBLINGS, SOUND
from doctor_sixth import ADDED, AS_MEANT, SIXTH
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, decoders, normalizers

HEAD = "lm_head.weight"
Change = Callable[[Case], Case]
Weights = dict[str, torch.Tensor]


def on_disk(change: Callable[[Weights], Weights], **config: Any) -> Change:
    """Changes the tensors of the model's file."""

    def save(model: Any, folder: Path) -> None:
        path = folder / "model.safetensors"
        save_file({k: v.contiguous() for k, v in change(load_file(path)).items()}, path, {"format": "pt"})

    return lambda case: replace(case, saved=save, config=config)


def loaded(plant: Callable[[Any], None]) -> Change:
    return lambda case: replace(case, loaded=plant)


def settled(change: Callable[[Any], None]) -> Change:
    """Changes the weights, and saves them."""

    def save(model: Any, folder: Path) -> None:
        with torch.no_grad():
            change(model)
        model.save_pretrained(folder)

    return lambda case: replace(case, saved=save)


def first_mlp(name: str) -> bool:
    return ".0." in name and ("mlp" in name or "feed_forward" in name)


# ---------------------------------------------------------------------------------------------------------- models


def without_layer(policy: Any) -> None:
    """The first layer's output is thrown away."""

    def hook(module: Any, given: Any, named: Any, output: Any) -> Any:
        hidden = given[0] if given else named["hidden_states"]
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    first_layer(policy).register_forward_hook(hook, with_kwargs=True)


def cache_of(named: dict[str, Any]) -> Any:
    return named.get("cache", named.get("past_key_values"))


def with_cache(change: Callable[[dict[str, Any]], None]) -> Callable[[Any], None]:
    """Changes the arguments of passes of one token over a cache."""

    def plant(policy: Any) -> None:
        base = policy.model.base_model
        forward = base.forward

        def changed(*arguments: Any, **named: Any) -> Any:
            if cache_of(named) is not None and named["input_ids"].shape[1] == 1:
                change(named)
            return forward(*arguments, **named)

        base.forward = changed

    return plant


def later(named: dict[str, Any]) -> None:
    if named.get("position_ids") is not None:
        named["position_ids"] = named["position_ids"] + 1


def hides_the_past(named: dict[str, Any]) -> None:
    """Keys that are more than eight places back."""

    def hidden(mask: torch.Tensor) -> torch.Tensor:
        mask = mask.clone()
        mask[..., :-8] = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        return mask

    mask = named.get("attention_mask")
    if isinstance(mask, dict):
        named["attention_mask"] = {kind: hidden(one) for kind, one in mask.items()}
    elif mask is not None:
        named["attention_mask"] = hidden(mask)


def coarse(policy: Any) -> None:
    """Keys and values are rounded where there is a cache."""

    def hook(module: Any, given: Any, named: Any, output: Any) -> Any:
        if cache_of(named) is None:
            return output
        hidden = output[0] if isinstance(output, tuple) else output
        hidden = (hidden * 8).round() / 8
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    first_layer(policy).register_forward_hook(hook, with_kwargs=True)


def drops_a_little(policy: Any) -> None:
    def hook(module: Any, given: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        hidden = torch.nn.functional.dropout(hidden, 0.01, training=True)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    first_layer(policy).register_forward_hook(hook)


def infinite_norm(model: Any) -> None:
    _, norm = next((n, p) for n, p in model.named_parameters() if p.dim() == 1 and "norm" in n)
    norm[0] = float("inf")


def overflowed(model: Any) -> None:
    """As a layer that was cast to float16 on the way."""
    weight = next(p for n, p in model.named_parameters() if first_mlp(n) and p.dim() == 2)
    weight[0, 0] = 1e6
    weight.copy_(weight.half().float())


def zero_head(model: Any) -> None:
    model.get_output_embeddings().weight.zero_()


def equal_embeddings(model: Any) -> None:
    weight = model.get_input_embeddings().weight
    weight.copy_(weight[5].clone().expand_as(weight))


def peaked(policy: Any) -> None:
    """One token always has all of the probability."""

    def hook(module: Any, given: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits * 1e4

    policy.model.get_output_embeddings().register_forward_hook(hook)


def doubled(policy: Any) -> None:
    """One gradient is twice what it should be."""
    next(p for n, p in policy.model.named_parameters() if first_mlp(n) and p.dim() == 2).register_hook(lambda g: 4 * g)


def hidden_weight(policy: Any) -> None:
    """A bias of the head that state_dict leaves out."""
    head = policy.model.get_output_embeddings()
    extra = torch.nn.Parameter(0.3 * torch.randn(head.weight.shape[0]))
    head.register_forward_hook(lambda module, given, logits: logits + extra)


def dead_layer(model: Any) -> None:
    for name, weight in model.named_parameters():
        if first_mlp(name) and weight.dim() == 2:
            weight.zero_()


def drop_keys(wanted: Callable[[str], bool]) -> Change:
    return on_disk(lambda state: {name: w for name, w in state.items() if not wanted(name)})


def another_layer(state: Weights) -> Weights:
    return state | {name.replace(".1.", ".2."): weight.clone() for name, weight in state.items() if ".1." in name}


def another_shape(state: Weights) -> Weights:
    return {
        name: weight[..., :-2] if first_mlp(name) and weight.dim() == 2 else weight for name, weight in state.items()
    }


def another_head(state: Weights) -> Weights:
    (embedding,) = (weight for name, weight in state.items() if "embed" in name)
    return state | {HEAD: torch.randn_like(embedding)}


def shuffled_layers(state: Weights) -> Weights:
    """Names of a version of the code that counted from 1."""
    return {name.replace(".1.", ".2.").replace(".0.", ".1."): weight for name, weight in state.items()}


CACHE = ("cache_is_exact", "engine_is_trainer")
MODELS: list[tuple[str, tuple[str, ...], Change]] = [
    ("lacks a layer's MLP in its file", ("weights_loaded",), drop_keys(first_mlp)),
    ("has a layer more in its file", ("weights_loaded",), on_disk(another_layer)),
    (
        "has other names in its file",
        ("weights_loaded",),
        on_disk(lambda state: {f"student.{name}": weight for name, weight in state.items()}),
    ),
    ("counts its layers from 1 in its file", ("weights_loaded",), on_disk(shuffled_layers)),
    ("has tensors of another shape in its file", ("weights_loaded", "load"), on_disk(another_shape)),
    (
        "ties its head, and has another one in its file",
        ("weights_loaded", "saves_and_loads"),
        on_disk(another_head, tie_word_embeddings=True),
    ),
    (
        "has no head in its file, and does not tie it",
        ("weights_loaded",),
        lambda case: replace(
            on_disk(lambda s: {k: v for k, v in s.items() if "head" not in k and "embed_out" not in k})(case),
            config={"tie_word_embeddings": False},
        ),
    ),
    ("throws a layer's output away", ("weights_learn",), loaded(without_layer)),
    ("counts positions from 1 behind a cache", CACHE, loaded(with_cache(later))),
    ("forgets what is eight tokens back behind a cache", CACHE, loaded(with_cache(hides_the_past))),
    ("rounds what it caches", CACHE, loaded(coarse)),
    ("drops one in a hundred in eval mode", ("passes_repeat",), loaded(drops_a_little)),
    ("has an infinity in a norm", ("weights_finite",), settled(infinite_norm)),
    ("has a weight that float16 could not hold", ("weights_finite",), settled(overflowed)),
    ("has a head of zeros", ("weights_alive", "reads_prompt"), settled(zero_head)),
    ("has one embedding for all tokens", ("weights_alive", "reads_prompt"), settled(equal_embeddings)),
    ("gives one token all of the probability", ("completions_vary", "reads_prompt"), loaded(peaked)),
    ("multiplies one gradient by four", ("gradient_is_slope",), loaded(doubled)),
    ("has a weight that is not in its state", ("saves_and_loads",), loaded(hidden_weight)),
    ("has a layer of zeros", ("weights_alive",), settled(dead_layer)),
]

# ------------------------------------------------------------------------------------------------------ tokenizers


def backend(change: Callable[[Any], None]) -> Change:
    def planted(case: Case) -> Case:
        # transformers makes Qwen2's tokenizer anew, with the normalizer of its class
        name = "olmo2" if case.architecture == "qwen2" else case.architecture
        return replace(case, architecture=name, tokenizer=lambda tokenizer: change(tokenizer.backend_tokenizer))

    return planted


def normalized(*steps: Any) -> Change:
    def change(inner: Any) -> None:
        inner.normalizer = normalizers.Sequence(list(steps))

    return backend(change)


def cleans_up(inner: Any) -> None:
    inner.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(" ,", ","), decoders.Replace(" .", ".")])


def decodes_trimmed(inner: Any) -> None:
    inner.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])


def eats_spaces(tokenizer: Any) -> None:
    tokenizer.add_tokens([AddedToken("=", lstrip=True, rstrip=True, normalized=False)])


def ends_with(text: str) -> Change:
    """The generation config names an ordinary token."""

    def save(model: Any, folder: Path) -> None:
        from transformers import AutoTokenizer

        (token,) = AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False)
        model.generation_config.eos_token_id = [2, token]
        model.save_pretrained(folder)

    return lambda case: replace(case, saved=save)


def pads_with(text: str) -> Change:
    def save(model: Any, folder: Path) -> None:
        from transformers import AutoTokenizer

        model.config.pad_token_id = AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False)[0]
        model.config.save_pretrained(folder)

    return lambda case: replace(case, saved=save)


def own_eos(case: Case) -> Case:
    """`eos_token` of the tokenizer is a word."""

    def change(tokenizer: Any) -> None:
        tokenizer.eos_token = "A"  # a letter: it is there already

    return replace(case, tokenizer=change)


TOKENIZERS: list[tuple[str, tuple[str, ...], Change]] = [
    ("cleans up spaces when decoding", ("text_survives",), backend(cleans_up)),
    ("cuts the space before a text", ("text_survives",), backend(decodes_trimmed)),
    ("normalizes with NFKC", ("text_survives",), normalized(normalizers.NFKC())),
    ("ends completions with a line break", ("ends_are_special",), ends_with("\n")),
    ("ends completions with a digit", ("ends_are_special",), ends_with("2")),
    ("has a word as its end token", ("ends_are_special",), own_eos),
    ("does not know 7", ("text_survives",), normalized(normalizers.Replace("7", ""))),
    ("pads with a digit", ("end_token_learns",), pads_with("2")),
    ("loses line breaks", ("text_survives",), normalized(normalizers.Replace("\n", " "))),
    (
        "has a token that eats the spaces beside it",
        ("text_survives",),
        lambda case: replace(case, tokenizer=eats_spaces),
    ),
    ("drops accents", ("text_survives",), normalized(normalizers.NFD(), normalizers.StripAccents())),
    ("makes two spaces one", ("text_survives",), normalized(normalizers.Replace(Regex(" {2,}"), " "))),
]

# ------------------------------------------------------------------------------------------------------- templates

CONTENT = "{{ m['content'] }}"


def shows(content: str, base: str = CHATML) -> Change:
    assert CONTENT in base
    return lambda case: replace(case, template=base.replace(CONTENT, content), with_tools=True)


USERS_ONLY = "if m.role == 'user' else m.content }}"
SPLIT = (
    "{% if m.role == 'user' and 'Answer:' in m.content %}{{ m.content.split('Answer:')[0] }}<|im_end|>\n"
    "<|im_start|>assistant\n{{ m.content.split('Answer:', 1)[1] }}{% else %}{{ m.content }}{% endif %}"
)
THINKS = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")
EXCHANGED = CHATML.replace(
    "{{ m['role'] }}",
    "{{ {'user': 'assistant', 'assistant': 'user'}.get(m.role, m.role) if loop.index0 > 2 else m.role }}",
)
TEMPLATES: list[tuple[str, tuple[str, ...], Change]] = [
    ("writes everything in small letters", ("whole_messages",), shows("{{ m.content | lower }}")),
    ("removes commas", ("whole_messages",), shows("{{ m.content | replace(',', '') }}")),
    ("removes blank lines", ("whole_messages",), shows("{{ m.content | replace('\\n\\n', '\\n') }}")),
    ("gives the assistant what follows Answer:", ("whole_messages",), shows(SPLIT)),
    (
        "leaves out the system message of longer conversations",
        ("whole_messages", "roles_kept", "appends_after_user"),
        lambda case: replace(
            case,
            with_tools=True,
            template=CHATML.replace("messages %}", "messages if not (m.role == 'system' and messages|length > 2) %}"),
        ),
    ),
    ("removes backslashes", ("whole_messages",), shows("{{ m.content | replace('\\\\', '') }}")),
    ("writes users' words as JSON", ("whole_messages",), shows("{{ m.content | tojson " + USERS_ONLY)),
    (
        "drops what is not ASCII",
        ("whole_messages",),
        shows("{% for c in m.content %}{{ c if c < '\\x7f' else '' }}{% endfor %}"),
    ),
    ("begins with a capital", ("whole_messages",), shows("{{ m.content | capitalize " + USERS_ONLY)),
    ("makes two spaces one", ("whole_messages",), shows("{{ m.content | replace('  ', ' ') }}")),
    (
        "asks every question twice",
        ("whole_messages",),
        shows("{{ m.content }}{{ '\n' + m.content " + ("if m.role == 'user' else '' }}")),
    ),
    ("shows the first paragraph only", ("whole_messages",), shows("{{ m.content.split('\\n\\n')[0] }}")),
    (
        "exchanges the roles of later turns",
        ("whole_messages", "roles_kept", "appends_after_user"),
        lambda case: replace(case, template=EXCHANGED, with_tools=True),
    ),
    ("cuts the marks of lists", ("whole_messages",), shows("{{ m.content.lstrip('- ') }}")),
    ("breaks lines after 80 letters", ("whole_messages",), shows("{{ m.content | wordwrap(80) }}")),
    ("removes HTML tags", ("whole_messages",), shows("{{ m.content | striptags " + USERS_ONLY)),
]

# ----------------------------------------------------------------------------------------------------------- tasks


def asks(rows: list[dict[str, Any]], **settings: Any) -> Change:
    return lambda case: replace(case, rows=rows, settings=settings)


LONG, SHORT = "9876543210", {"rollout.max_completion_tokens": 6}
TASKS: list[tuple[str, tuple[str, ...], Change]] = [
    ("has one answer for all questions", ("task_informs",), asks([row | {"answer": "7"} for row in ROWS])),
    ("has one row 100 times", ("task_informs", "load"), asks(ROWS[:1] * 100)),
    (
        "tells the answer in the question",
        ("task_informs",),
        asks([row | {"question": f"{row['question']} (solution: {row['answer']})"} for row in ROWS]),
    ),
    (
        "begins every question with its answer",
        ("task_informs",),
        asks([row | {"question": f"{row['answer']}. {row['question']}"} for row in ROWS]),
    ),
    (
        "has answers longer than a completion",
        ("answers_fit",),
        asks([row | {"answer": LONG + row["answer"]} for row in ROWS], **SHORT),
    ),
    (
        "has answers that fit until they end",
        ("answers_fit",),
        asks(ROWS, **{"rollout.max_completion_tokens": 1}),
    ),
    (
        "has every third answer longer than a completion",
        ("answers_fit",),
        asks([row | {"answer": row["answer"] + (LONG if i % 3 == 0 else "")} for i, row in enumerate(ROWS)], **SHORT),
    ),
    (
        "has 95 of 100 answers alike",
        ("task_informs",),
        asks([row | {"answer": row["answer"] if i % 20 == 0 else "7"} for i, row in enumerate(ROWS)]),
    ),
    (
        "asks the same with different answers",
        ("task_informs", "rows_are_used"),
        asks([{"question": f"What is it, number {i % 9}?", "answer": str(i)} for i in range(99)]),
    ),
    (
        "differs in a number that says nothing",
        ("task_informs",),
        asks([{"question": f"Row {i}: what is 3 plus 4?", "answer": "7"} for i in range(99)]),
    ),
]

# --------------------------------------------------------------------------------------------------------- rewards


def paid(reward: Callable[..., Any], **settings: Any) -> Change:
    return lambda case: replace(case, reward=reward, settings=settings)


REWARDS: list[tuple[str, tuple[str, ...], Change]] = [
    ("remembers a question's first score", ("reward_forgets",), paid(rewards.cached)),
    ("pays a text once", ("reward_forgets", "reward_repeats"), paid(rewards.pays_once)),
    ("pays nothing after 30 calls", ("reward_forgets", "reward_repeats"), paid(rewards.tires)),
    ("takes half a second", ("reward_is_fast",), paid(rewards.slow)),
    ("compares with the answer of the call before", ("reward_forgets", "reward_repeats"), paid(rewards.one_behind)),
    ("subtracts the mean of what it scored", ("reward_forgets", "reward_repeats"), paid(rewards.centered)),
    ("has the wrong sign", ("gold_scores_full",), paid(rewards.negative)),
    ("pays length on top", ("wrong_scores_less", "long_scores_less"), paid(rewards.pays_length)),
    ("compares with the first answer it saw", ("gold_scores_full", "reward_forgets"), paid(rewards.first_gold)),
    ("takes a tenth for each letter", ("gold_scores_full", "empty_scores_less"), paid(rewards.thrifty)),
    ("gives 1e30 for what is right", ("reward_is_scaled",), paid(rewards.huge)),
    ("depends on the process that scores", ("reward_repeats", "reward_forgets"), paid(rewards.by_process)),
    ("pays who does not end", ("wrong_scores_less", "long_scores_less"), paid(rewards.pays_rambling)),
    ("reads the end of the prompt, too", ("echo_scores_less", "empty_scores_less"), paid(rewards.reads_prompt)),
]


# ------------------------------------------------------- invented when the checks were done, and run once


def broken_rope(policy: Any) -> None:
    """A buffer, which is no weight."""
    for name, buffer in policy.model.named_buffers():
        if "inv_freq" in name:
            buffer.fill_(float("nan"))


def scaled_by_length(policy: Any) -> None:
    def hook(module: Any, given: Any, named: Any, output: Any) -> Any:
        output.logits = output.logits / (1 + 0.02 * named["input_ids"].shape[1])
        return output

    policy.model.register_forward_hook(hook, with_kwargs=True)


def noise_of_the_clock(policy: Any) -> None:
    import time

    def hook(module: Any, given: Any, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        hidden = hidden * (1 + 0.01 * (time.perf_counter_ns() % 5))
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    first_layer(policy).register_forward_hook(hook)


def adapters_of_scale_zero(policy: Any) -> None:
    from rlvr.models.adapters import lora_layers

    for layer in lora_layers(policy.model).values():
        layer.scaling = dict.fromkeys(layer.scaling, 0.0)


def no_bytes(inner: Any) -> None:
    """Drops what is beyond the basic plane."""
    inner.normalizer = normalizers.Replace(Regex("[\U00010000-\U0010ffff]"), "")


LATE: list[tuple[str, str, tuple[str, ...], Change]] = [
    ("model", "has NaN in its rotary frequencies", ("weights_finite",), loaded(broken_rope)),
    (
        "model",
        "divides its logits by the length of the row",
        ("trainer_is_model", "cache_is_exact", "packed_alone"),
        loaded(scaled_by_length),
    ),
    ("model", "multiplies a layer by the clock", ("passes_repeat",), loaded(noise_of_the_clock)),
    (
        "model",
        "scales its adapters by 0",
        ("weights_learn",),
        lambda case: replace(case, loaded=adapters_of_scale_zero, settings=LORA),
    ),
    (
        "model",
        "lacks its last norm in its file",
        ("weights_loaded",),
        drop_keys(lambda name: name.endswith("norm.weight") and "layers" not in name),
    ),
    ("tokenizer", "drops what follows a #", ("text_survives",), normalized(normalizers.Replace(Regex("#[^\n]*"), ""))),
    ("tokenizer", "drops emoji", ("text_survives",), backend(no_bytes)),
    ("tokenizer", "ends completions with a space", ("ends_are_special",), ends_with(" ")),
    ("tokenizer", "ends completions with a brace", ("ends_are_special",), ends_with("}")),
    (
        "template",
        "writes the number of messages",
        ("appends_after_user", "appends_after_tools"),
        lambda case: replace(case, with_tools=True, template="{{ messages | length }} messages\n" + CHATML),
    ),
    (
        "template",
        "puts the system message last",
        ("whole_messages",),
        lambda case: replace(
            case,
            with_tools=True,
            template=CHATML.replace(
                "in messages %}",
                "in (messages | rejectattr('role', 'equalto', 'system') | list)"
                " + (messages | selectattr('role', 'equalto', 'system') | list) %}",
            ),
        ),
    ),
    ("template", "straightens quotes", ("whole_messages",), shows("{{ m.content | replace('“', '\"') }}")),
    (
        "template",
        "gives a user's first line to the system",
        ("whole_messages",),
        shows(
            "{% if m.role == 'user' and '\n' in m.content %}{{ m.content.split('\n', 1)[1] }}<|im_end|>\n"
            "<|im_start|>system\n{{ m.content.split('\n', 1)[0] }}{% else %}{{ m.content }}{% endif %}"
        ),
    ),
    (
        "template",
        "writes tool results twice",
        ("tool_results", "appends_after_tools"),
        shows("{{ m.content }}{{ m.content if m.role == 'tool' else '' }}"),
    ),
    (
        "task",
        "tells the answer in brackets at the end",
        ("task_informs",),
        asks([row | {"question": f"{row['question']} [{row['answer']}]"} for row in ROWS]),
    ),
    (
        "task",
        "asks what cannot be known",
        ("task_informs",),
        asks([{"question": f"Guess number {i}.", "answer": "17" if i % 30 else "18"} for i in range(99)]),
    ),
    ("reward", "pays the next number", ("gold_scores_full",), paid(rewards.next_number)),
    ("reward", "is slow for long texts", ("reward_is_fast", "reward_survives"), paid(rewards.slow_for_long)),
    ("reward", "pays a text once, by a file", ("reward_forgets",), paid(rewards.pays_once_by_file)),
    ("reward", "grows with its calls", ("reward_forgets",), paid(rewards.grows)),
    (
        "reward",
        "fails at each third call",
        ("reward_forgets", "reward_repeats", "reward_survives"),
        paid(rewards.fails_thirdly),
    ),
    (
        "reward",
        "looks for the digits in their order",
        ("wrong_scores_less", "echo_scores_less", "long_scores_less"),
        paid(rewards.digits_in_order),
    ),
]


def faults() -> list[Fault]:
    groups = {"model": MODELS, "tokenizer": TOKENIZERS, "template": TEMPLATES, "task": TASKS, "reward": REWARDS}
    return [Fault(name, kind, expected, change) for kind, group in groups.items() for name, expected, change in group]


def halves() -> dict[str, list[Fault]]:
    """Each kind in two, drawn by seed; and the late ones."""
    found: dict[str, list[Fault]] = {"tuned": [], "kept": []}
    for group, listed in (
        ("late", LATE),
        ("fifth", FIFTH),
        ("sixth", SIXTH),
        ("seventh", SEVENTH),
        ("eighth", EIGHTH),
        ("siblings", SIBLINGS),
        ("sound", [*SOUND, *BESIDE]),
        ("meant", AS_MEANT),
    ):
        found[group] = [
            Fault(name, kind, (*expected, *(ADDED | LATER).get(name, ())), change)
            for kind, name, expected, change in listed
        ]
    every = faults()
    for kind in dict.fromkeys(fault.kind for fault in every):
        ours = [fault for fault in every if fault.kind == kind]
        kept = set(random.Random(31).sample(range(len(ours)), len(ours) // 2))
        for number, fault in enumerate(ours):
            found["kept" if number in kept else "tuned"].append(fault)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--half",
        choices=["tuned", "kept", "late", "fifth", "sixth", "seventh", "eighth", "siblings", "sound", "meant"],
        help="one of them",
    )
    args = arguments(parser)
    for half, chosen in halves().items():
        if args.half in (None, half):
            tally = Tally()
            print(f"\n{half}\n")
            named = [fault for fault in chosen if args.faults in fault.name]
            survey(named, each=args.each, seed=args.seed, verbose=args.verbose, tally=tally)
            print(f"\n{half}: {tally.told()}")


if __name__ == "__main__":
    main()

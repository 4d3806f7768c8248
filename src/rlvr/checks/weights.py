"""Checks of the weights as they were loaded: all there, alive, and used."""

import re
from typing import Any, cast

import torch

from rlvr.checks.patient import Patient, next_token, skip, verdict
from rlvr.models.adapters import adapter_weights
from rlvr.records.checks import Check
from rlvr.types import Message

NO_DIFFERENCE = 1e-5  # between the logprobs of a token after two prompts
MOST_ALIKE = 0.2  # of the tokens; published models have some that were never trained
LARGEST_ROW = 20  # times the median of the rows
UNTRAINED = 1e-2  # of the median of the rows: smaller ones, and smaller distances
NO_CHOICE = 1e-4  # nats of a whole completion


def weights_loaded(patient: Patient) -> Check:
    """Every tensor of the model is in its files, and every layer of the files in the model."""
    report, parameters = patient.policy.load_report, dict(patient.model.named_parameters())
    names = {key: sorted(map(_name, report.get(key, ()))) for key in KEYS}
    # a critic's head or a drafting layer may be left over; what looks like a layer of this model was meant to be one
    ends = {_any_number(name).rpartition(".layers.")[2] for name in parameters}
    odd = [name for name in names["unexpected_keys"] if _any_number(name).rpartition(".layers.")[2] in ends]
    heads = [patient.model.get_input_embeddings(), patient.model.get_output_embeddings()]
    tied = bool(getattr(patient.model.config.get_text_config(), "tie_word_embeddings", False))
    untied = tied and None not in heads and heads[0].weight is not heads[1].weight and patient.policy.adapters is None
    faults = [f"{len(names['missing_keys'])} are not in its files, and random"] if names["missing_keys"] else []
    faults += [f"{len(names['mismatched_keys'])} have another shape there"] if names["mismatched_keys"] else []
    faults += [f"{len(odd)} of its files have no place in it"] if odd else []
    faults += ["the head is not the embedding, though config.json ties them"] if untied else []
    total = sum(1 for _ in patient.model.named_parameters(remove_duplicate=False))  # a tied head may be missing, too
    first = next(iter([*names["missing_keys"], *names["mismatched_keys"], *odd]), "")
    return verdict(
        bool(faults),
        f"of {total} weight tensors {', '.join(faults)}" + (f"; first {first}" if first else ""),
        f"the model's files hold each of {len(parameters)} weight tensors"
        + (f", and {len(names['unexpected_keys'])} more" if names["unexpected_keys"] else ""),
        "the files were written for another config.json (num_hidden_layers, tie_word_embeddings, architectures), under "
        "other names (a wrapper's prefix), or are not complete: save the model again with save_pretrained",
        **{key: value[:5] for key, value in names.items() if value},
    )


KEYS = ("missing_keys", "mismatched_keys", "unexpected_keys")


def _name(key: Any) -> str:
    """Mismatched ones come with their shapes."""
    return str(key[0] if isinstance(key, tuple) else key)


def _any_number(name: str) -> str:
    return re.sub(r"\.\d+\.", ".#.", name)


@torch.no_grad()
def weights_alive(patient: Patient) -> Check:
    """No matrix is one row again and again, and tokens have rows of their own."""
    adapters = {id(weight) for weight in adapter_weights(patient.model).values()} if patient.policy.adapters else set()
    matrices = [
        (name, weight)
        for name, weight in patient.model.named_parameters()
        if name.endswith("weight") and weight.dim() == 2 and len(weight) > 1 and weight.is_floating_point()
        if id(weight) not in adapters
    ]
    dead = [name for name, weight in matrices if _all_equal(weight)]
    alike, of_what = _alike_tokens(patient)
    share = alike / len(patient.policy.tokenizer)
    return verdict(
        bool(dead) or share > MOST_ALIKE,
        f"{len(dead)} of {len(matrices)} weight matrices are one row again and again, first {next(iter(dead), '')}"
        if dead
        else f"{alike:,} tokens ({share:.0%} of the tokenizer) have one row of the {of_what}: nothing tells them apart",
        f"each of {len(matrices)} weight matrices has different rows, and so have the tokens",
        "these weights were never trained or were overwritten (zeros, a fill): take an earlier checkpoint",
        matrices=dead[:10],
    )


def _alike_tokens(patient: Patient) -> tuple[int, str]:
    """The most tokens that share a row, and of which matrix. Rows beyond the tokenizer are often alike."""
    known = torch.tensor(sorted(set(patient.policy.tokenizer.get_vocab().values())))
    counts = []
    for name, weight in _tables(patient):
        sums = weight.cpu().sum(1, dtype=torch.float64)  # equal rows have equal sums; MPS has no float64
        sums = sums[known[known < len(weight)]]
        counts.append((int(sums.unique(return_counts=True)[1].max()), name))
    return max(counts, default=(1, ""))


@torch.no_grad()
def rows_are_sized(patient: Patient) -> Check:
    """No token's row is far larger than the rest: one that was drawn when a vocabulary was enlarged."""
    known = torch.tensor(sorted(set(patient.policy.tokenizer.get_vocab().values())))
    worst = 0.0, 0, "embedding"
    for name, module in _tables(patient):
        norms = torch.linalg.vector_norm(module, dim=1, dtype=torch.float32).cpu()[known[known < len(module)]]
        middle = float(norms.median())
        large = norms > LARGEST_ROW * middle
        if middle > 0 and large.any():
            worst = max(worst, (float(norms.max()) / middle, int(large.sum()), name))
    times, count, name = worst
    return verdict(
        count > 0,
        f"{count} tokens have rows of the {name} that are up to {times:.0f} times as large as others: they outweigh "
        "what was learnt",
        f"no token's row is over {LARGEST_ROW} times as large as the others",
        "give new tokens the mean of the other rows (resize_token_embeddings does), and save the model again",
        times=times,
        tokens=count,
    )


@torch.no_grad()
def template_is_trained(patient: Patient) -> Check:
    """Tokens that the template writes have rows of their own: reserved ones of a base model are alike, or zeros."""
    template, tokenizer = patient.chat.template, patient.policy.tokenizer
    if template is None:
        return skip("there is no template")
    asked = Message(role="user", content="x")
    used = set(patient.coder.encode(template.render([asked, Message(role="assistant", content="y"), asked])))
    special = sorted(used & set(cast(Any, tokenizer).added_tokens_decoder))
    untrained = list[tuple[str, list[int]]]()
    for name, table in _tables(patient):
        rows = table[[token for token in special if token < len(table)]].float().cpu()
        middle = float(torch.linalg.vector_norm(table, dim=1, dtype=torch.float32).median())
        apart = torch.cdist(rows, rows).fill_diagonal_(float("inf")) < UNTRAINED * middle
        raw = apart.any(1) | (torch.linalg.vector_norm(rows, dim=1) < UNTRAINED * middle)
        if middle > 0 and raw.any():
            untrained.append((name, [token for token, bad in zip(special, raw.tolist(), strict=False) if bad]))
    name, tokens = next(iter(untrained), ("embedding", []))
    names = [patient.chat.decode([token]) for token in tokens]
    return verdict(
        bool(untrained),
        f"the template's {', '.join(map(repr, names))} have equal rows of the {name}, or zeros: nothing trained them",
        f"{len(special)} special tokens of the template have rows of their own",
        "take the model that the template belongs to, or one whose tokens this model was trained with: a base model "
        "knows neither the header nor the end of a turn",
        tokens=names,
    )


def _tables(patient: Patient) -> list[tuple[str, torch.Tensor]]:
    """Embedding and head, as far as they are matrices of numbers."""
    model = patient.model
    both = (("embedding", model.get_input_embeddings()), ("head", model.get_output_embeddings()))
    found = [(name, getattr(module, "weight", None)) for name, module in both]
    return [(name, w) for name, w in found if w is not None and w.dim() == 2 and w.is_floating_point()]


def _all_equal(weight: torch.Tensor) -> bool:
    return torch.equal(weight[0], weight[-1]) and bool((weight == weight[0]).all())


@torch.no_grad()
def reads_prompt(patient: Patient) -> Check:
    """Other questions give other probabilities."""
    prompts = list(dict.fromkeys(patient.prompt(index)[1] for index in range(8)))[:4]
    if len(prompts) < 2:
        return skip("the task asks the same question again and again")
    first, *others = [next_token(patient, ids).clamp_min(1e-30).log() for ids in prompts]
    gap = max(float((one - first).abs().max()) for one in others)
    return verdict(
        not gap > NO_DIFFERENCE,
        f"the next token has the same probabilities after {len(prompts)} questions: the model does not read them",
        f"{len(prompts)} questions give different probabilities of the next token (by {gap:.2g} nats)",
        "look at the embedding, the head and the attention mask: one of them hides the prompt",
    )


def completions_vary(patient: Patient) -> Check:
    """A group of equal completions has equal rewards, and no gradient."""
    rollout = patient.config.rollout
    cut = {"top_p": rollout.top_p, "top_k": rollout.top_k, "min_p": rollout.min_p}
    groups = patient.sample(rollout.temperature, **cut)
    sums = [
        -sum(turn.completion.sampling_logprobs)
        for group in groups
        for episode in group.episodes
        for turn in episode.turns
    ]
    return verdict(
        max(sums) < NO_CHOICE,
        f"{len(sums)} sampled completions have probability 1: a group's are all the same, and nothing is learnt",
        f"sampled completions differ: the least likely has {max(sums):.3g} nats",
        "sample from more tokens: rollout.top_k=0, rollout.top_p=1, rollout.min_p=0"
        if cut != {"top_p": 1, "top_k": 0, "min_p": 0}
        else "raise rollout.temperature, or take an earlier checkpoint: this one has collapsed to one answer",
        temperature=rollout.temperature,
        **cut,
    )


CHECKS = (
    weights_alive,
    rows_are_sized,
    template_is_trained,
    completions_vary,
    reads_prompt,
)  # they need finite weights

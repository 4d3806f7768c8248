"""Checks of the tokenizer against the model, and of the tokens that end a completion."""

import asyncio
from typing import Any, cast

import torch

from rlvr.chat.rendering import end_ids
from rlvr.checks.patient import Patient, around, first_fault, next_token, skip, solved, verdict
from rlvr.checks.speech import end_of_turn
from rlvr.checks.texts import answered, asked, awkward
from rlvr.reasoning import THINK
from rlvr.records.checks import Check
from rlvr.types import Message, StopReason

LEAST_PROBABILITY = 1e-9  # of ending; below it no completion of a run would
MOST_UNKNOWN = 0.01  # of the probability
NUM_JOINED = 4  # prompts


@torch.no_grad()
def vocabulary_fits(patient: Patient) -> Check:
    known, rows = (
        set(patient.policy.tokenizer.get_vocab().values()),
        patient.model.get_input_embeddings().num_embeddings,
    )
    missing = sorted(token for token in known if token >= rows)
    ends = sorted(token for token in patient.chat.stop_ids - known if token >= rows)
    spare = [token for token in range(rows) if token not in known]
    mass = 0.0 if missing or not spare else float(next_token(patient, patient.prompt(0)[1])[spare].sum())
    return verdict(
        bool(missing or ends) or mass > MOST_UNKNOWN,
        f"{len(missing)} tokens of the tokenizer have no row in the model"
        if missing
        else f"the end tokens {ends} are beyond the model's {rows:,} rows and unknown to the tokenizer"
        if ends
        else f"{len(spare)} rows of the model are no token, and they are sampled with probability {mass:.2g}",
        f"each of {len(known):,} tokens has a row, and rows without a token have probability {mass:.1g}",
        "correct eos_token_id in generation_config.json and config.json"
        if ends and not missing
        else "use the tokenizer that the model was trained with, or resize_token_embeddings to its length",
        tokens=len(known),
        rows=rows,
        first=(missing or ends or spare)[:5],
    )


def text_survives(patient: Patient) -> Check:
    """What the task says must reach the model as it is, and what a model writes the verifier."""
    golds = answered(patient)
    words = patient.task.vocabulary is not None  # a tokenizer of words has no others
    texts = golds if words else [*golds, *asked(patient), *awkward(patient.config.seed)]
    bad = []
    for text in texts:
        back = patient.chat.decode(ids := patient.coder.encode(text))
        if (back.split() != text.split()) if words else (back != text):
            bad.append(around(text, back, "text", "decoded") | {"ids": list(ids[:20])})
    return verdict(
        bool(bad),
        f"{len(bad)} of {len(texts)} texts are changed by encoding and decoding",
        f"{len(texts)} texts, the task's own and awkward ones, are the same after encoding and decoding",
        "use a tokenizer without normalization or unknown tokens: verifiers read another text than the model wrote",
        examples=bad[:3],
    )


def ends_are_special(patient: Patient) -> Check:
    """A token that ends completions is no part of a text."""
    tokenizer: Any = patient.policy.tokenizer
    stops, bad = patient.chat.stop_ids, dict[int, dict[str, Any]]()
    texts = answered(patient) if patient.task.vocabulary is not None else [*answered(patient), *awkward()]
    inside = {patient.chat.decode([token]): token for token in stops}
    for text in texts:
        ids = patient.coder.encode(text)
        for token in stops & set(ids[:-1]):
            place = ids.index(token)
            bad.setdefault(token, {"in": patient.chat.decode(ids[max(0, place - 8) : place + 8])})
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    words = {patient.coder.encode(word)[0] for word in patient.task.stop_words if patient.reads(word)}
    for token in stops - special - words - bad.keys():
        if patient.task.vocabulary is None:
            bad[token] = {"in": "the words of the tokenizer: it is no special token"}
    for token in own_ends_of_thoughts(patient) - bad.keys():
        bad[token] = {"in": "the end of reasoning: the answer follows it"}
    names = {text: bad[token]["in"] for text, token in inside.items() if token in bad}
    return verdict(
        bool(bad) or not stops,
        "no token ends a completion: tokenizer, config.json and generation_config.json name none"
        if not stops
        else f"{len(bad)} of {len(stops)} end tokens are ordinary text ({', '.join(map(repr, names))}): a completion "
        "ends in the middle of its answer",
        f"none of {len(stops)} end tokens is a part of {len(texts)} texts",
        "set eos_token of the tokenizer and eos_token_id of generation_config.json to special tokens",
        tokens=names,
    )


def own_ends_of_thoughts(patient: Patient) -> set[int]:
    """End tokens of tokenizer and configs that open or close reasoning; the end of a turn may do both (GPT-OSS)."""
    template = patient.chat.template
    marks = (THINK,) if template is None else (THINK, template.marks)
    ids = [patient.coder.encode(mark.strip()) for one in marks for mark in (one.open, one.close) if patient.reads(mark)]
    turn = set() if template is None else set(end_of_turn(patient.chat, Message(role="assistant", content="x"), "x"))
    return {one[0] for one in ids if len(one) == 1} & end_ids(patient.policy.tokenizer, patient.model) - turn


def stop_tokens_stop(patient: Patient) -> Check:
    """Each stop token, made the likeliest, ends a completion of the engine."""
    engine, head, failed = patient.engine, patient.model.get_output_embeddings(), []
    ids = patient.prompt(0)[1]
    for token in sorted(patient.chat.stop_ids):

        def likeliest(module: Any, given: Any, logits: torch.Tensor, token: int = token) -> torch.Tensor:
            logits = logits.clone()
            logits[..., token] = logits.detach().nan_to_num().amax() + 1e4
            return logits

        if token >= patient.model.config.get_text_config().vocab_size:
            failed.append(token)
            continue
        hook = head.register_forward_hook(likeliest)
        try:
            engine.load_weights(0)
            found = asyncio.run(engine.generate(ids, patient.params(0, 0.0, 4)))
        finally:
            hook.remove()
        if found.stop_reason != StopReason.STOP or found.token_ids != (token,):
            failed.append(token)
    engine.load_weights(0)
    names = {token: patient.chat.decode([token]) for token in sorted(patient.chat.stop_ids)}
    return verdict(
        bool(failed) or not names,
        f"the stop tokens {failed} do not end a completion" if names else "there is no stop token",
        f"each of {len(names)} stop tokens ends a completion: {', '.join(map(repr, names.values()))}",
        "name an end token that the model has: eos_token of the tokenizer, eos_token_id of generation_config.json",
        stop_ids=names,
    )


@torch.no_grad()
def stop_is_possible(patient: Patient) -> Check:
    """The probability of ending, after prompts and after right answers."""
    worst, vocabulary = 1.0, patient.model.config.get_text_config().vocab_size
    stops = [token for token in patient.chat.stop_ids if token < vocabulary]
    rows = [patient.prompt(index)[1] for index in range(4)]
    for number, (_, turns) in enumerate(solved(patient, 4)):
        rows[number] += patient.coder.encode(turns[-1]) if isinstance(turns[-1], str) else ()
    chances = [next_token(patient, ids)[stops].sum().item() for ids in rows]
    worst = max(chances)
    return verdict(
        not worst > LEAST_PROBABILITY,
        f"a completion ends with probability {worst:.1g} at best: the stop token is never sampled",
        f"after right answers a completion ends with probability {worst:.2g} at best",
        "check the rows of the head that belong to the end tokens: after a resize of the vocabulary they are untrained",
        probabilities=chances,
        stop_ids=sorted(patient.chat.stop_ids),
    )


def one_bos(patient: Patient) -> Check:
    """One beginning token begins the prompt. It may begin each message, too, as in some ChatML models: what the
    template writes again is no fault, what the tokenizer adds to it is."""
    tokenizer: Any = patient.policy.tokenizer
    bos, ids = tokenizer.bos_token_id, patient.prompt(0)[1]
    adds = bos is not None and tokenizer.encode("", add_special_tokens=True)[:1] == [bos]
    is_end = bos in patient.chat.stop_ids  # some tokenizers use one token for both
    count = 0 if bos is None or is_end else ids.count(bos)
    begins = next((place for place, token in enumerate(ids) if token != bos), len(ids)) if count else 0
    added = 0 if bos is None or is_end or patient.chat.template is None else _added(patient, bos, tokenizer.bos_token)
    return first_fault(
        (
            (
                adds and not is_end and count == 0,
                f"the tokenizer begins texts with token {bos}, and the prompt does not",
                "write bos_token once at the beginning of chat_template.jinja",
            ),
            (
                begins > 1,
                f"the prompt has the beginning token {bos} {begins} times",
                "write bos_token once at the beginning of chat_template.jinja",
            ),
            (
                added > 0,
                f"the tokenizer adds the beginning token {bos} to what the template writes, {added} times",
                "take the beginning token from the tokenizer's post_processor: the template writes it",
            ),
        ),
        "the prompt begins as the tokenizer begins texts",
        bos_id=bos,
        first_ids=list(ids[:8]),
    )


def _added(patient: Patient, bos: int, text: str) -> int:
    """By how many beginning tokens the ids of a prompt are more than the template wrote."""
    assert patient.chat.template is not None
    asked = [Message(role="user", content="x")]
    return patient.chat.encode_prompt(asked).count(bos) - patient.chat.template.render(asked).count(text)


def specials_are_whole(patient: Patient) -> Check:
    """Each special token that the template writes is read as the one token that it is."""
    template, tokenizer = patient.chat.template, patient.policy.tokenizer
    if template is None:
        return skip("there is no template")
    user, said = Message(role="user", content="x"), Message(role="assistant", content="y")
    text, known = template.render([user, said, user]), cast(Any, tokenizer).added_tokens_decoder
    ids, left, split = set(patient.coder.encode(text)), text, list[str]()
    for token, added in sorted(known.items(), key=lambda item: -len(item[1].content)):
        if added.content.strip() and added.content in left:
            split += [added.content] if token not in ids else []
            left = left.replace(added.content, "\0")
    pieces = [patient.chat.decode([token]) for token in patient.coder.encode(split[0])] if split else []
    return verdict(
        bool(split),
        f"{len(split)} special tokens of the template are read as pieces of text, first {next(iter(split), '')!r} as "
        f"{' '.join(map(repr, pieces))}",
        f"the special tokens of the template are read as such, {len(known)} are known",
        "set split_special_tokens to false in tokenizer_config.json, and special to true for them in tokenizer.json",
        tokens=split,
    )


def prompt_ends_whole(patient: Patient) -> Check:
    """Where a prompt ends with a space, text goes on with other tokens: they begin with the space."""
    if patient.task.vocabulary is not None:
        return skip("the tokenizer has words alone")
    texts, apart = dict[str, str](), list[str]()
    for index in range(NUM_JOINED):
        example, ids = patient.prompt(index)
        answer = patient.task.answered(example.answer) if example.answer else None
        prompt = patient.chat.decode(ids)
        if isinstance(answer, str) and prompt[-1:] in (" ", "\t"):
            texts[prompt] = answer
            apart += [prompt] if patient.coder.encode(prompt + answer) != (*ids, *patient.coder.encode(answer)) else []
    return verdict(
        2 * len(apart) > NUM_JOINED,
        f"prompts end with a space ({next(iter(apart), '')[-20:]!r}): in a text the next token would begin with it, "
        "and the model has seldom seen a space alone",
        f"{NUM_JOINED} prompts do not end within what would be one token",
        "take the space from the end of prompt.user, or of the header in chat_template.jinja",
        prompts=[prompt[-80:] for prompt in apart[:2]],
    )


CHECKS = (vocabulary_fits, text_survives, specials_are_whole, ends_are_special, one_bos)
STOPS = (stop_tokens_stop, stop_is_possible)  # they need finite weights

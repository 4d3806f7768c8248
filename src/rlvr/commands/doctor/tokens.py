"""Checks of the tokenizer against the model, and of the tokens that end a completion."""

import asyncio
from collections.abc import Sequence
from typing import Any

import torch

from rlvr.commands.doctor.patient import Patient, skip, verdict
from rlvr.core.engine import LocalEngine
from rlvr.run.tasks import context_tokens
from rlvr.tracking.checks import Check
from rlvr.types import Message, StopReason

LEAST_PROBABILITY = 1e-9  # of ending; below it no completion of a run would
MOST_UNKNOWN = 0.01  # of the probability
SAMPLES = (
    "Ein Größenvergleich: 3 × 4 = 12",
    "A b  C\n\td",
    "\\boxed{\\frac{1}{2}}",
    '{"a": [1, "x"]}',
    "naïve 東京 🙂",
)


@torch.no_grad()
def vocabulary_fits(patient: Patient) -> Check:
    known, rows = (
        set(patient.policy.tokenizer.get_vocab().values()),
        patient.model.get_input_embeddings().num_embeddings,
    )
    missing = sorted(token for token in known if token >= rows)
    spare = [token for token in range(rows) if token not in known]
    mass = 0.0 if missing or not spare else float(_next(patient, patient.prompt(0)[1])[spare].sum())
    return verdict(
        bool(missing) or mass > MOST_UNKNOWN,
        f"{len(missing)} tokens of the tokenizer have no row in the model"
        if missing
        else f"{len(spare)} rows of the model are no token, and they are sampled with probability {mass:.2g}",
        f"each of {len(known):,} tokens has a row, and rows without a token have probability {mass:.1g}",
        "use the tokenizer that the model was trained with, or resize_token_embeddings to its length",
        tokens=len(known),
        rows=rows,
        first=(missing or spare)[:5],
    )


def text_survives(patient: Patient) -> Check:
    """What a model writes must reach the verifier as it is."""
    golds = [str(turns[-1]) for _, turns in patient.task.solutions(8)]
    words = patient.task.vocabulary is not None  # a tokenizer of words has no others
    texts = golds if words else [*SAMPLES, *golds]
    bad = []
    for text in texts:
        back = patient.chat.decode(ids := patient.coder.encode(text))
        if (back.split() != text.split()) if words else (back != text):
            bad.append({"text": text[:100], "decoded": back[:100], "ids": list(ids[:20])})
    return verdict(
        bool(bad),
        f"{len(bad)} of {len(texts)} texts are changed by encoding and decoding",
        f"{len(texts)} texts are the same after encoding and decoding",
        "use a tokenizer without normalization or unknown tokens: verifiers read another text than the model wrote",
        examples=bad[:3],
    )


def stop_tokens_stop(patient: Patient) -> Check:
    """Each stop token, made the likeliest, ends a completion of the engine."""
    if not isinstance(engine := patient.engine, LocalEngine):
        return skip("the engine is a server")
    head, failed = patient.model.get_output_embeddings(), []
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
    for number, (_, turns) in enumerate(patient.task.solutions(4)):
        rows[number] += patient.coder.encode(turns[-1]) if isinstance(turns[-1], str) else ()
    found = [_next(patient, ids)[stops].sum().item() for ids in rows]
    worst = max(found)
    return verdict(
        not worst > LEAST_PROBABILITY,
        f"a completion ends with probability {worst:.1g} at best: the stop token is never sampled",
        f"after right answers a completion ends with probability {worst:.2g} at best",
        "check the rows of the head that belong to the end tokens: after a resize of the vocabulary they are untrained",
        probabilities=found,
        stop_ids=sorted(patient.chat.stop_ids),
    )


def _next(patient: Patient, ids: Sequence[int]) -> torch.Tensor:
    given = torch.tensor([ids[-context_tokens(patient.policy) :]], device=patient.model.device)
    return patient.model(input_ids=given, use_cache=False).logits[0, -1].float().softmax(-1).cpu()


def one_bos(patient: Patient) -> Check:
    tokenizer: Any = patient.policy.tokenizer
    bos, ids = tokenizer.bos_token_id, patient.prompt(0)[1]
    asked = patient.chat.encode_reply([Message(role="user", content="x")]) if tokenizer.chat_template else ()
    adds = bos is not None and tokenizer.encode("", add_special_tokens=True)[:1] == [bos]
    is_end = bos in patient.chat.stop_ids  # some tokenizers use one token for both
    count = 0 if bos is None or is_end else ids.count(bos) + asked.count(bos)
    missing = adds and not is_end and count == 0
    return verdict(
        count > 1 or missing,
        f"the prompt has the beginning token {bos} {count} times"
        if count
        else f"the tokenizer begins texts with token {bos}, and the prompt does not",
        "the prompt begins as the tokenizer begins texts",
        "write bos_token once at the beginning of chat_template.jinja",
        bos_id=bos,
        first_ids=list(ids[:8]),
    )


CHECKS = (vocabulary_fits, text_survives, one_bos)
STOPS = (stop_tokens_stop, stop_is_possible)  # they need finite weights

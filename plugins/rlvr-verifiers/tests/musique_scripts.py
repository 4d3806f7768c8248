"""Episodes of MuSiQue of all kinds, as scripts of what the model says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.types import Example, Message, StopReason
from scripted import call

PLUGIN = Path(__file__).parents[1]
DATA = PLUGIN / "tests" / "musique"
SETS = {"train_sets": f"{DATA}/train.jsonl", "eval_sets": f"{DATA}/dev.jsonl"}
REWARDS = ("musique", "musique_spec", "musique_later")


def answers(example: Example, num_cited: int = 2, answer: str | None = None) -> str:
    support = list(example.metadata["support"])
    final = example.answer if answer is None else answer
    return call(("complete", {"reasoning": "so", "final_answer": final, "cited_doc_ids": support[:num_cited]}))


def scripts(example: Example) -> dict[str, Sequence[Any]]:
    """Episodes of all kinds: what the model says in each turn."""
    search = call(("retrieve_documents", {"query": example.messages[-1].content, "top_n": 2}))
    first = next(iter(example.metadata["support"]))
    return {
        "right": (search, answers(example)),
        "wrong, cites one": (search, answers(example, 1, "river Thames of Vena")),
        "reads everything": (*[call(("get_document", {"doc_id": str(i)})) for i in range(8)], answers(example, 0)),
        "two calls at once": (call(("get_document", {"doc_id": first}), ("list_documents", {})), answers(example)),
        "answers in words": (search, "It is the Vena."),
        "says nothing": ("",),
        "malformed, unknown, wrong type, no document": (
            "calls rubbish",
            call(("look_up", {"query": "x"})),
            call(("retrieve_documents", {"query": []})),
            call(("get_document", {"doc_id": "99"})),
            answers(example),
        ),
        "refused completion": (call(("complete", {"reasoning": "so"})), answers(example)),
        "cut off": (search, ("calls [", StopReason.LENGTH)),
        "never ends": (search,) * 10,
        "completes in the last turn": (*((search,) * 9), answers(example)),
    }


_ANY = Example(id="", messages=(Message(role="user", content=""),), answer="", metadata={"support": {"0": "0"}})
KINDS = tuple(scripts(_ANY))

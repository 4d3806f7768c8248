"""Completions that must be JSON, or a call of a tool: the tokens that may come next, by llguidance.

response_format {"type": "json_object"}                     any object
response_format {"type": "json_schema", ...}                what the schema describes
tool_choice "required", or one by name                      {"name": "look", "arguments": {...}}
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import llguidance
import llguidance.hf
import torch
from torch import Tensor

from rlvr.printable import ascii_text
from rlvr.serve.schemas import invalid

COMPACT: Any = {"whitespace_flexible": False}
"""A space after a comma or colon and no other whitespace: a small model could otherwise write spaces without an end."""


class Constraints:
    """Compiles constraints for one tokenizer; `stop_ids` may follow what is complete, `vocabulary_size` is that of the
    logits."""

    def __init__(self, tokenizer: Any, stop_ids: frozenset[int], vocabulary_size: int) -> None:
        self._hub_tokenizer, self._stop_ids, self._size = tokenizer, stop_ids, vocabulary_size

    def json(self, field: str, schema: Mapping[str, Any]) -> "Constraint":
        """ApiError, a 400 that names the field, for a schema that cannot be followed."""
        return self._compiled(field, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), COMPACT))

    def calls(self, field: str, tools: Mapping[str, Mapping[str, Any]]) -> "Constraint":
        """A call of one of the tools, by the JSON schema of its arguments."""
        rules = ["start: " + " | ".join(f"call_{number}" for number in range(len(tools)))]
        for number, (name, parameters) in enumerate(tools.items()):
            head = json.dumps(json.dumps({"name": name})[:-1] + ', "arguments": ')
            rules.append(f'call_{number}: {head} arguments_{number} "}}"')
            rules.append(f"arguments_{number}: %json {json.dumps({**parameters, 'x-guidance': COMPACT})}")
        grammar = llguidance.LLMatcher.grammar_from_lark("\n".join(rules))
        if llguidance.LLMatcher.validate_grammar(grammar, self._tokenizer):
            for name, parameters in tools.items():  # each by itself, to name the wrong one
                alone = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(parameters), COMPACT)
                self._compiled(field, alone, f"the parameters of {ascii_text(name[:80])}")
        return self._compiled(field, grammar)

    def _compiled(self, field: str, grammar: str, what: str = "it") -> "Constraint":
        if problem := llguidance.LLMatcher.validate_grammar(grammar, self._tokenizer):
            raise invalid(field, f"{what} cannot be followed: {_in_a_line(problem)}.")
        made = Constraint(llguidance.LLMatcher(self._tokenizer, grammar, log_level=0), self._stop_ids, self._size)
        if made.copy().gives_up_after([]):
            raise invalid(field, "it cannot be followed: no text fits it.")
        return made

    @cached_property
    def _tokenizer(self) -> llguidance.LLTokenizer:
        """It takes a second for 60,000 tokens, so it is made for the first request that needs it."""
        if not self._stop_ids:
            raise invalid("response_format", "the model names no token that ends a completion, so JSON has no end.")
        try:
            return llguidance.hf.from_tokenizer(
                self._hub_tokenizer,
                n_vocab=self._size,
                eos_token=sorted(self._stop_ids),  # pyright: ignore[reportArgumentType]
            )
        except Exception:
            raise invalid("response_format", "the tokens of this model cannot write JSON; leave it out.") from None


def _in_a_line(problem: str) -> str:
    """What is wrong; of a regular expression without the drawing of the place."""
    first, *rest = problem.splitlines()
    cause = next((line.removeprefix("error: ") for line in rest if line.startswith("error: ")), "")
    return ascii_text(f"the pattern {rest[0].strip()[:80]}: {cause}"[:300] if cause else first[:200])


class Constraint:
    """The tokens that may follow a completion; see `core.engine.base.Allowed`. Each completion needs its `copy`."""

    def __init__(self, matcher: llguidance.LLMatcher, stop_ids: frozenset[int], vocabulary_size: int) -> None:
        self._matcher, self._stop_ids, self._size = matcher, stop_ids, vocabulary_size
        self._num_read = 0
        self.gave_up = False  # no text fits, e.g. in a schema that refers to itself without an end

    def copy(self) -> "Constraint":
        return Constraint(self._matcher.deep_copy(), self._stop_ids, self._size)

    def __call__(self, ids: Sequence[int]) -> Tensor:
        if len(ids) < self._num_read:  # the completion began again
            self._matcher.reset()
            self._num_read, self.gave_up = 0, False
        self._matcher.consume_tokens(list(ids[self._num_read :]))
        self._num_read = len(ids)
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        mask = (bits[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten()[: self._size].bool()
        self.gave_up = self._matcher.is_error() or not mask.any()
        if self.gave_up:
            mask[sorted(self._stop_ids)] = True
        return mask

    def gives_up_after(self, ids: Sequence[int]) -> bool:
        self(ids)
        return self.gave_up

"""A teacher on a server: logprobs of given tokens from an OpenAI completions endpoint that returns them, as vLLM does.

`prompt_logprobs` is vLLM's: for each token of the prompt but the first, `{id: {logprob, decoded_token, ...}}`. The
answer is untrusted.
"""

import math
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlvr.engines.openai import connection, library, read_address
from rlvr.errors import ConfigError, UserError
from rlvr.printable import one_line
from rlvr.types import TokenBatch

ROWS = 16  # of one request


class _Token(BaseModel):
    logprob: float
    decoded_token: str | None = None


class _Choice(BaseModel):
    index: int
    prompt_logprobs: list[dict[int, _Token] | None]


class _Answer(BaseModel):
    choices: list[_Choice]


class ServedTeacher:
    """The model NAME of `openai:http://127.0.0.1:8000/v1#NAME`."""

    def __init__(self, address: str, tokenizer: PreTrainedTokenizerBase) -> None:
        self._url, self._name = read_address(address)
        self._tokenizer = tokenizer
        self._compared: set[int] = set()  # ids whose text is the same there

    def logprobs(self, batch: TokenBatch) -> Tensor:
        """[B, T] of the sampled tokens, 0 elsewhere. UserError if the server fails, or if its tokens are others."""
        columns = torch.zeros_like(batch.behavior_logprobs)
        rows = [ids[:length].tolist() for ids, length in zip(batch.ids, batch.lengths.tolist(), strict=True)]
        with library().OpenAI(**connection(self._url)) as client:
            for first in range(0, len(rows), ROWS):
                asked = rows[first : first + ROWS]
                for row, (ids, tokens) in enumerate(zip(asked, self._ask(client, asked), strict=True), first):
                    columns[row, : len(ids)] = torch.tensor([0.0, *self._read(ids, tokens)])
        return columns.where(batch.loss_mask, 0.0)

    def _ask(self, client: Any, rows: list[list[int]]) -> list[list[dict[int, _Token] | None]]:
        body: dict[str, Any] = {"prompt_logprobs": 0, "add_special_tokens": False}
        try:
            said = client.completions.with_raw_response.create(
                model=self._name, prompt=rows, max_tokens=1, temperature=0.0, extra_body=body
            )
            choices = sorted(_Answer.model_validate_json(said.content).choices, key=lambda choice: choice.index)
        except library().OpenAIError as error:
            raise UserError(
                f"the teacher {self._url} failed ({one_line(str(error))}): repair it, then resume."
            ) from error
        except ValidationError as error:
            raise UserError(
                f"the teacher {self._url} returns no prompt logprobs: use a server that does, such as vLLM's."
            ) from error
        if [len(choice.prompt_logprobs) for choice in choices] != [len(row) for row in rows]:
            raise UserError(f"the teacher {self._url} returns logprobs of other tokens than it was asked for.")
        return [choice.prompt_logprobs for choice in choices]

    def _read(self, ids: list[int], tokens: list[dict[int, _Token] | None]) -> list[float]:
        """The logprobs of all tokens but the first."""
        logprobs = []
        for number, known in zip(ids[1:], tokens[1:], strict=True):
            token = (known or {}).get(number)
            if token is None or math.isnan(token.logprob) or token.logprob > 1e-3:
                raise UserError(
                    f"the teacher {self._url} returns no logprob of token {number}, which it was asked for."
                )
            if number not in self._compared:
                self._compare(number, token.decoded_token)
            logprobs.append(token.logprob)
        return logprobs

    def _compare(self, number: int, there: str | None) -> None:
        """UserError for another tokenizer, seen by a token's text; half characters have no text of their own."""
        here = str(self._tokenizer.decode([number]))
        if there is not None and "\ufffd" not in here + there and here.strip() != there.strip():
            raise UserError(
                f"the teacher's ids are not the student's: {number} is {here!r} here and {there!r} at {self._url}; "
                "choose a teacher with the policy's tokenizer."
            )
        self._compared.add(number)


def open_teacher(address: str, tokenizer: PreTrainedTokenizerBase, *, temperature: float) -> ServedTeacher:
    """ConfigError for an address of another form, or a run that samples at another temperature than the server's."""
    if temperature != 1:
        raise ConfigError(
            f"rollout.temperature={temperature}: the teacher {address} scores tokens at temperature 1; set it to 1.0, "
            "or name a teacher that is loaded here."
        )
    return ServedTeacher(address, tokenizer)

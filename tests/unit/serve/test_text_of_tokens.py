"""The text of answers, their streams and the tokens of `logprobs` fit each other by the bytes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from rlvr.commands.serve.local import ServeSettings, open_served
from rlvr.serve.sampling import Served
from tests.unit.chat.tokenizers import byte_tokenizer, fallback_tokenizer
from tests.unit.serve.chain import save_successors
from tests.unit.serve.test_answers import CHAT, COMPLETIONS, ask, one

EMOJI = "\U0001f600"
TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "bytes": lambda: byte_tokenizer(adds_bos=True),
    "llama2": lambda: fallback_tokenizer(words=["▁Hello", "▁the", "▁cat"]),
    "gemma": lambda: fallback_tokenizer(strips=False),
}


def byte_ids(tokenizer: PreTrainedTokenizerFast, data: bytes) -> list[int]:
    vocabulary = tokenizer.get_vocab()
    if "<0x00>" in vocabulary:
        return [vocabulary[f"<0x{byte:02X}>"] for byte in data]
    return tokenizer.encode(data.decode(), add_special_tokens=False)


@pytest.fixture(scope="module", params=TOKENIZERS)
def repeating(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """It says the four bytes of a character again and again, behind the last of them."""
    tokenizer = TOKENIZERS[request.param]()
    ids = byte_ids(tokenizer, EMOJI.encode())
    successors = dict(zip(ids, [*ids[1:], ids[0]], strict=True))
    folder = save_successors(tmp_path_factory.mktemp("repeating"), tokenizer, successors, tokenizer.eos_token_id)
    with open_served(str(folder), ServeSettings(names=("m",), max_batch_size=4, max_queue=24)) as (served, _):
        yield served


@pytest.fixture(scope="module", params=TOKENIZERS)
def undecided(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """It says any token."""
    tokenizer = TOKENIZERS[request.param]()
    folder = tmp_path_factory.mktemp("undecided")
    save_successors(folder, tokenizer, {}, tokenizer.eos_token_id, scale=0.0)
    with open_served(str(folder), ServeSettings(names=("m",), max_batch_size=4, max_queue=24)) as (served, _):
        yield served


def prompt_of(served: Served) -> list[int]:
    return byte_ids(served.chat._tokenizer, EMOJI.encode())[-1:]


@pytest.mark.parametrize("num_tokens", [1, 2, 4, 6, 9])
def test_a_stream_a_stop_text_and_the_whole_answer_are_the_bytes(repeating: Served, num_tokens: int) -> None:
    body = {"prompt": prompt_of(repeating), "max_tokens": num_tokens, "temperature": 0}
    wanted = (EMOJI.encode() * 3)[:num_tokens].decode("utf-8", "replace")
    assert wanted.count("\ufffd") <= num_tokens % 4
    assert one(ask(repeating, COMPLETIONS, **body))["text"] == wanted
    assert one(ask(repeating, COMPLETIONS, **body, stop="never"))["text"] == wanted
    events = ask(repeating, COMPLETIONS, **body, stream=True).events
    assert "".join(choice["text"] for event in events for choice in event["choices"]) == wanted


def test_random_tokens_have_one_text_and_bytes_that_join_to_it(undecided: Served) -> None:
    seeds = range(12)
    for seed in seeds:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 12, "seed": seed, "ignore_eos": True}
        choice = one(ask(undecided, CHAT, **body, logprobs=True, top_logprobs=2))
        text = choice["message"]["content"]
        entries = choice["logprobs"]["content"]
        assert bytes(byte for entry in entries for byte in entry["bytes"]).decode("utf-8", "replace") == text
        events = ask(undecided, CHAT, **body, stream=True).events
        parts = [choice["delta"].get("content", "") for event in events for choice in event["choices"]]
        assert "".join(parts) == text
        assert all("\ufffd" not in entry["token"] for entry in entries)


def test_random_tokens_have_places_and_keys_of_their_own(undecided: Served) -> None:
    for seed in range(20):
        body = {"prompt": "a", "max_tokens": 10, "seed": seed, "ignore_eos": True, "logprobs": 3}
        choice = one(ask(undecided, COMPLETIONS, **body))
        text, found = choice["text"], choice["logprobs"]
        for place, word, value, tops in zip(
            found["text_offset"], found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
        ):
            assert word.startswith("bytes:") or text[place:].startswith(word)
            assert tops[word] == value
            assert len(tops) in (3, 4)


@pytest.mark.parametrize(
    ("name", "prompt", "tokens", "places"),
    [
        ("bytes", "ab", ["<|bos|>", "a", "b"], [0, 0, 1]),
        ("bytes", "é1", ["<|bos|>", "bytes:\\xc3", "bytes:\\xa9", "1"], [0, 0, 0, 1]),
        ("bytes", "", ["<|bos|>"], [0]),
        ("gemma", "a €b", ["<s>", "a", " ", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "b"], [0, 0, 1, 2, 2, 2, 3]),
        ("llama2", "ab", ["<s>", "", "a", "b"], [0, 0, 0, 1]),
    ],
)
def test_an_echoed_prompt_has_the_places_of_its_text(
    name: str, prompt: str, tokens: Sequence[str], places: Sequence[int], tmp_path: Path
) -> None:
    tokenizer = TOKENIZERS[name]()
    folder = save_successors(tmp_path, tokenizer, {}, tokenizer.eos_token_id)
    with open_served(str(folder), ServeSettings(names=("m",), max_batch_size=4, max_queue=24)) as (served, _):
        choice = one(ask(served, COMPLETIONS, prompt=prompt, echo=True, logprobs=0, max_tokens=1))
    found = choice["logprobs"]
    assert choice["text"] == prompt
    assert found["tokens"][:-1] == tokens
    assert found["text_offset"] == [*places, len(prompt)]  # behind the prompt the end was sampled


@pytest.mark.parametrize("name", ["llama2", "bytes"])
def test_an_empty_prompt_begins_a_document(name: str, tmp_path: Path) -> None:
    """As in OpenAI's API, and in vLLM's for a model with a beginning token."""
    tokenizer = TOKENIZERS[name]()
    folder = save_successors(tmp_path, tokenizer, {}, tokenizer.eos_token_id)
    with open_served(str(folder), ServeSettings(names=("m",), max_batch_size=4, max_queue=24)) as (served, _):
        for prompt in ("", ["a", ""]):
            answer = ask(served, COMPLETIONS, prompt=prompt, max_tokens=1, return_token_ids=True).json
            assert answer["choices"][-1]["prompt_token_ids"] == [tokenizer.bos_token_id]

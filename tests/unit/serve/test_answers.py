"""Answers of the endpoint against completions of the engine."""

import asyncio
import copy
import json
from dataclasses import replace

import pytest
import torch

from rlvr.chat.rendering import Chat
from rlvr.commands.serve.local import ServeSettings, open_served
from rlvr.serve.sampling import Served
from rlvr.types import Message, SamplingParams
from tests.unit.engines.tiny import generate
from tests.unit.serve.chain import CALL, SPOKEN, save_chain
from tests.unit.serve.client import Client

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
IDS = [40, 41, 42, 7]
PLACE = {"type": "object", "properties": {"place": {"type": "string"}, "deep": {"type": ["boolean", "null"]}}}
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PLACE}}


def ask(served: Served, path: str, **body):
    """One answer."""

    async def run():
        return await Client(served).post(path, body)

    return asyncio.run(run())


def sampled(served: Served, ids, **settings):
    known = {"max_tokens": 12, "stop_ids": served.chat.stop_ids, "seed": 3} | settings
    return generate(served.engine, [(ids, SamplingParams(**known))])[0]


def one(answer):
    assert answer.status == 200, answer.body
    (choice,) = answer.json["choices"]
    return choice


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({}, {}),
        ({"temperature": 0}, {"temperature": 0}),
        ({"temperature": 0.5}, {"temperature": 0.5}),
        ({"top_p": 0.3}, {"top_p": 0.3}),
        ({"top_k": 3}, {"top_k": 3}),
        ({"top_k": -1}, {}),
        ({"min_p": 0.5}, {"min_p": 0.5}),
        ({"ignore_eos": True, "stop_token_ids": [5, 105]}, {"stop_ids": frozenset({5, 105})}),
        ({"max_tokens": 3}, {"max_tokens": 3}),
    ],
)
def test_pitfall_06_ids_and_logprobs_are_the_engines(qwen, fields, settings):
    body = {"prompt": IDS, "max_tokens": 12, "seed": 3, "logprobs": 2, "return_token_ids": True} | fields
    choice, expected = one(ask(qwen, COMPLETIONS, **body)), sampled(qwen, IDS, **settings)
    assert not settings or expected != sampled(qwen, IDS), "the setting makes no difference: choose another value"
    assert choice["prompt_token_ids"] == IDS
    assert choice["token_ids"] == list(expected.token_ids)
    assert choice["logprobs"]["token_logprobs"] == list(expected.behavior_logprobs)
    assert choice["finish_reason"] == expected.stop_reason.value
    ended = choice["finish_reason"] == "stop"
    assert choice["text"] == qwen.chat.decode(expected.token_ids[:-1] if ended else expected.token_ids)


def test_the_prompt_may_have_four_forms(qwen):
    text, other = "What is 3", " plus"
    ids, others = list(qwen.chat.encode_text(text)), list(qwen.chat.encode_text(other))
    shared = {"seed": 1, "max_tokens": 5, "return_token_ids": True}
    for single in (text, ids, [text], [ids]):
        assert one(ask(qwen, COMPLETIONS, prompt=single, **shared))["prompt_token_ids"] == ids
    answers = [ask(qwen, COMPLETIONS, prompt=both, **shared).json for both in ([text, other], [ids, others])]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert [choice["prompt_token_ids"] for choice in answers[0]["choices"]] == [ids, others]
    assert answers[0]["usage"]["prompt_tokens"] == len(ids) + len(others)


def test_pitfall_36_seeds_repeat_and_choices_differ(qwen):
    body = {"prompt": IDS, "n": 4, "max_tokens": 12, "return_token_ids": True}
    answers = [ask(qwen, COMPLETIONS, **body, seed=seed).json["choices"] for seed in (3, 3, 4)]
    assert answers[0] == answers[1] != answers[2]
    texts = [tuple(choice["token_ids"]) for choice in answers[0]]
    assert len(set(texts)) == 4
    assert texts[0] == sampled(qwen, IDS).token_ids
    unseeded = [ask(qwen, COMPLETIONS, **body).json["choices"] for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_likely_tokens_are_in_order(qwen):
    choice = one(ask(qwen, COMPLETIONS, prompt=IDS, logprobs=4, max_tokens=6, temperature=0, ignore_eos=True))
    probs = choice["logprobs"]
    for word, value, top in zip(probs["tokens"], probs["token_logprobs"], probs["top_logprobs"], strict=True):
        assert list(top.values()).count(value) >= 1
        assert max(top.values()) == top[word] == value  # greedy
    assert probs["text_offset"][0] == 0
    drawn = one(ask(qwen, COMPLETIONS, prompt=IDS, logprobs=0, max_tokens=2, seed=1))["logprobs"]
    assert [len(top) for top in drawn["top_logprobs"]] == [1] * len(drawn["tokens"])
    alone = one(ask(qwen, CHAT, messages=HELLO, logprobs=True, max_tokens=4, seed=1))["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in alone] == [[]] * len(alone) != []
    chat = one(ask(qwen, CHAT, messages=HELLO, logprobs=True, top_logprobs=3, max_tokens=4, seed=1))
    for entry in chat["logprobs"]["content"]:
        others = [other["logprob"] for other in entry["top_logprobs"]]
        assert others == sorted(others, reverse=True)
        assert len(others) == 3
        assert bytes(entry["bytes"]).decode("utf-8", "backslashreplace") == entry["token"]


def test_a_batch_gives_each_client_its_own_answer(qwen):
    bodies = [
        {"prompt": [40 + i, 50, 60 + i], "seed": i, "max_tokens": 4 + i, "return_token_ids": True, "logprobs": i % 3}
        for i in range(20)
    ]

    async def together():
        client = Client(qwen)
        return await asyncio.gather(*(client.post(COMPLETIONS, body) for body in bodies))

    for body, answer in zip(bodies, asyncio.run(together()), strict=True):
        alone = one(ask(qwen, COMPLETIONS, **body))
        assert one(answer)["token_ids"] == alone["token_ids"]
        assert one(answer)["logprobs"]["token_logprobs"] == pytest.approx(alone["logprobs"]["token_logprobs"], abs=1e-5)


def test_pitfall_03_the_end_token_ends_unless_ignored(chain):
    used = [ask(chain, COMPLETIONS, prompt="<", max_tokens=20, ignore_eos=flag).json["usage"] for flag in (None, True)]
    assert [usage["completion_tokens"] for usage in used] == [len(chain.chat.encode_text(SPOKEN)) + 1, 20]


def test_default_lengths_of_completions_and_chats(qwen):
    assert ask(qwen, COMPLETIONS, prompt=IDS, ignore_eos=True).json["usage"]["completion_tokens"] == 16
    used = ask(qwen, CHAT, messages=HELLO, ignore_eos=True).json["usage"]
    assert used["total_tokens"] == qwen.max_context_tokens
    answer = ask(qwen, COMPLETIONS, prompt=[IDS, IDS[:2]], n=3, max_tokens=2, seed=1, ignore_eos=True)
    assert answer.json["usage"] == {"prompt_tokens": 6, "completion_tokens": 12, "total_tokens": 18}  # prompts once


HELLO = [{"role": "user", "content": "What is 3 plus 4?"}]


def test_a_question_alone_has_the_form_that_a_model_of_words_has_learned(qwen):
    words = replace(qwen, form=lambda text: (Message(role="user", content=f"{text} ="),))
    user, system = {"role": "user", "content": "3 + 4"}, {"role": "system", "content": "Be brief."}
    for history, found in (([user], "3 + 4 ="), ([system, user], "3 + 4"), ([user, user], "3 + 4")):
        choice = one(ask(words, CHAT, messages=history, return_token_ids=True, max_tokens=1))
        wanted = [Message(role=one["role"], content=one["content"]) for one in history[:-1]]
        wanted.append(Message(role="user", content=found))
        assert choice["prompt_token_ids"] == list(qwen.chat.encode_prompt(wanted))


def test_a_chat_is_rendered_by_the_chat_layer(qwen):
    turns = [("system", "Be brief."), ("user", "What is 3?"), ("assistant", "3"), ("user", "And 4?")]
    messages = [Message(role=role, content=content) for role, content in turns]
    history = [{"role": role, "content": content} for role, content in turns]
    history[0]["role"] = "developer"
    history[1]["content"] = [{"type": "text", "text": "What is"}, {"type": "text", "text": " 3?"}]
    choice = one(ask(qwen, CHAT, messages=history, return_token_ids=True, max_tokens=2))
    assert choice["prompt_token_ids"] == list(qwen.chat.encode_prompt(messages))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stops", "text", "reason"),
    [
        (None, SPOKEN, "stop"),
        ("c\u00e9", "ab", "stop"),
        (["x", "\u20acd", "bx"], "abc\u00e9", "stop"),
        (["a"], "", "stop"),
        (["dx", "xa", ""], SPOKEN, "stop"),
    ],
)
def test_pitfall_14_text_ends_before_a_stop_text(chain, stops, text, reason, stream):
    answer = ask(chain, COMPLETIONS, prompt="<", stop=stops, max_tokens=40, stream=stream, return_token_ids=True)
    if stream:
        parts = [choice for event in answer.events for choice in event["choices"]]
        assert "".join(part["text"] for part in parts) == text
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [reason]
        assert not any("\ufffd" in part["text"] for part in parts)
    else:
        assert (one(answer)["text"], one(answer)["finish_reason"]) == (text, reason)
        assert (one(answer)["token_ids"][-1] in chain.chat.stop_ids) == (text == SPOKEN)  # nothing is sampled behind it


def test_a_truncated_completion_says_length(chain):
    for stop, text, reason in ((None, "ab", "length"), ("ab", "", "stop")):
        choice = one(ask(chain, COMPLETIONS, prompt="<", max_tokens=2, stop=stop))
        assert (choice["text"], choice["finish_reason"]) == (text, reason)


@pytest.mark.parametrize("stops", [None, ["e", "7 ", "\u00e9", "?"]])
def test_pitfall_06_a_stream_equals_the_whole_answer(qwen, stops):
    body = {"prompt": [IDS, [50, 51]], "seed": 5, "n": 3, "max_tokens": 40, "logprobs": 2, "return_token_ids": True}
    body["stop"] = stops
    whole = ask(qwen, COMPLETIONS, **body).json
    events = ask(qwen, COMPLETIONS, **body, stream=True, stream_options={"include_usage": True}).events
    assert events[-1]["usage"] == whole["usage"]
    assert events[-1]["choices"] == []
    for expected in whole["choices"]:
        parts = [c for event in events for c in event["choices"] if c["index"] == expected["index"]]
        assert "".join(part["text"] for part in parts) == expected["text"]
        assert [entry for part in parts for entry in part["token_ids"]] == expected["token_ids"]
        for key in ("token_logprobs", "tokens", "top_logprobs", "text_offset"):
            assert [entry for part in parts for entry in part["logprobs"][key]] == expected["logprobs"][key]
        ids = [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part]
        assert ids == [expected["prompt_token_ids"]]
        assert len(parts) > 2 or len(expected["token_ids"]) < 8
        assert [part["finish_reason"] for part in parts][-1] == expected["finish_reason"]


@pytest.mark.parametrize("asked", [{}, {"logprobs": 0}, {"return_token_ids": True}])
def test_a_stream_has_an_entry_without_text_only_for_who_counts_tokens(qwen, asked):
    """Text is held back while it may become a stop word or the rest of a character is missing."""
    body = {"prompt": [IDS, [50, 51]], "seed": 5, "n": 3, "max_tokens": 40, "stop": ["7 ", "\u00e9"], "stream": True}
    events = ask(qwen, COMPLETIONS, **body, **asked).events
    silent = [c for event in events for c in event["choices"] if not c["text"] and c["finish_reason"] is None]
    assert bool(silent) == bool(asked)


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_are_parsed_and_tools_are_in_the_prompt(chain, stream):
    body = {"messages": HELLO, "tools": [LOOK], "stream": stream, "return_token_ids": True, "max_tokens": 20}
    answer = ask(chain, CHAT, **body)
    if stream:
        parts = [c for event in answer.events for c in event["choices"]]
        said = parts[-1]["delta"]
        choice = parts[-1]
        assert said["tool_calls"][0].pop("index") == 0
    else:
        choice = one(answer)
        said = choice["message"]
        assert said["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    (call,) = said["tool_calls"]
    assert call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"]) == {"place": "caf\u00e9", "deep": True}
    prompt = chain.chat.decode(choice["prompt_token_ids"])
    assert '"name": "look"' in prompt
    without = one(ask(chain, CHAT, messages=HELLO, tools=[LOOK], tool_choice="none", max_tokens=20))
    assert without["message"]["content"] == CALL
    assert "tool_calls" not in without["message"]
    cut = one(ask(chain, CHAT, messages=HELLO, tools=[LOOK], stop="look", max_tokens=30))
    assert cut["message"]["content"] is None  # the call was whole


def test_a_conversation_goes_on_after_a_tool(chain):
    calls = one(ask(chain, CHAT, messages=HELLO, tools=[LOOK], max_tokens=20))["message"]["tool_calls"]
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "A chair. <|im_end|>"},
    ]
    choice = one(ask(chain, CHAT, messages=history, tools=[LOOK], max_tokens=20, return_token_ids=True))
    prompt = chain.chat.decode(choice["prompt_token_ids"])
    assert f"assistant\n{CALL}" in prompt
    assert "user\n<tool_response>\nA chair. < |im_end|>\n</tool_response><|im_end|>" in prompt
    assert choice["message"]["tool_calls"][0]["id"] != calls[0]["id"]


def test_a_stream_of_a_chat_equals_the_whole_answer(qwen):
    body = {
        "messages": HELLO,
        "logprobs": True,
        "max_tokens": 8,
        "seed": 1,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    whole = one(ask(qwen, CHAT, **body))
    parts = [event["choices"][0] for event in ask(qwen, CHAT, **body, stream=True).events]
    assert [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part] == [whole["prompt_token_ids"]]
    assert [token for part in parts for token in part.get("token_ids", [])] == whole["token_ids"]
    assert parts[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(part["delta"].get("content", "") for part in parts) == whole["message"]["content"]
    assert [entry for part in parts[1:] for entry in part["logprobs"]["content"]] == whole["logprobs"]["content"]


def written(spelled: bytes) -> str:
    text = spelled.decode("utf-8", "backslashreplace")
    return f"bytes:{text}" if "\\x" in text else text


def test_echo_gives_the_prompt_with_the_logprobs_of_a_plain_forward(qwen):
    prompts = [IDS, [5, 9, 5, 40, 41, 42, 7, 8]]
    answer = ask(qwen, COMPLETIONS, prompt=prompts, echo=True, logprobs=2, max_tokens=2, temperature=0)
    for ids, choice in zip(prompts, answer.json["choices"], strict=True):
        with torch.inference_mode():
            wanted = torch.log_softmax(qwen.policy.model(torch.tensor([ids])).logits[0].double(), dim=-1)
        found = choice["logprobs"]
        assert choice["text"].startswith(qwen.chat.decode(ids))
        assert "".join(found["tokens"]).startswith(qwen.chat.decode(ids))
        assert found["text_offset"][: len(ids)] == [len(qwen.chat.decode(ids[:n])) for n in range(len(ids))]
        assert len(found["token_logprobs"]) == len(found["top_logprobs"]) == len(ids) + 2
        assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
        for place, token in enumerate(ids[1:], start=1):
            at = wanted[place - 1]
            assert found["token_logprobs"][place] == pytest.approx(at[token].item(), abs=1e-4)
            likely = [written(qwen.chat.spell(other, token)) for other in at.topk(2).indices.tolist()]
            assert {*likely} <= found["top_logprobs"][place].keys()
            assert found["top_logprobs"][place][likely[0]] == pytest.approx(at.max().item(), abs=1e-4)


def test_all_completions_of_a_request_differ(qwen):
    body = {"seed": 3, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    drawn = [choice["token_ids"] for choice in ask(qwen, COMPLETIONS, prompt=[IDS, IDS], n=2, **body).json["choices"]]
    assert len({*map(tuple, drawn)}) == 4
    assert one(ask(qwen, COMPLETIONS, prompt=IDS, **body))["token_ids"] == drawn[0]


def test_echo_without_alternatives_names_none(qwen):
    found = one(ask(qwen, COMPLETIONS, prompt=IDS, echo=True, logprobs=0, max_tokens=1))["logprobs"]
    own = [{token: value} for token, value in zip(found["tokens"], found["token_logprobs"], strict=True)]
    assert found["top_logprobs"][1:] == own[1:]


def test_echo_without_completion_or_logprobs(qwen):
    choice = one(ask(qwen, COMPLETIONS, prompt="plus is", echo=True, max_tokens=0))
    assert (choice["text"], choice["logprobs"], choice["finish_reason"]) == ("plus is", None, "length")
    usage = ask(qwen, COMPLETIONS, prompt=IDS, echo=True, max_tokens=0, logprobs=0).json
    assert usage["usage"]["completion_tokens"] == 0
    assert len(usage["choices"][0]["logprobs"]["tokens"]) == len(IDS)


def test_echo_of_nothing_begins_a_document(qwen):
    end = qwen.policy.tokenizer.eos_token_id
    body = {"echo": True, "logprobs": 0, "max_tokens": 3, "temperature": 0, "return_token_ids": True}
    nothing, begun = (one(ask(qwen, COMPLETIONS, prompt=prompt, **body)) for prompt in ("", [end]))
    assert nothing["prompt_token_ids"] == [end]
    assert nothing["token_ids"] == begun["token_ids"]
    assert nothing["logprobs"]["token_logprobs"] == begun["logprobs"]["token_logprobs"]
    assert nothing["text"] == begun["text"].removeprefix(qwen.chat.decode([end]))


def test_long_prompts_are_read_in_parts(qwen, monkeypatch):
    whole = ask(qwen, COMPLETIONS, prompt=[IDS, IDS[::-1] * 3, IDS * 2], echo=True, logprobs=1, max_tokens=0).json
    monkeypatch.setattr("rlvr.serve.prompt_logprobs.MAX_TOKENS", 8)
    monkeypatch.setattr("rlvr.serve.prompt_logprobs.logits_per_chunk", lambda device: 700)
    parts = ask(qwen, COMPLETIONS, prompt=[IDS, IDS[::-1] * 3, IDS * 2], echo=True, logprobs=1, max_tokens=0).json
    for one_way, other in zip(whole["choices"], parts["choices"], strict=True):
        logprobs = [choice["logprobs"]["token_logprobs"][1:] for choice in (one_way, other)]
        assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-5)


def test_harmless_fields_change_nothing(qwen):
    body = {"messages": [{"role": "user", "content": "Hi"}], "seed": 2, "max_tokens": 8}
    more = {"reasoning_effort": "low", "skip_special_tokens": True, "chat_template_kwargs": {}, "store": True}
    more |= {"response_format": {"type": "text"}, "parallel_tool_calls": False, "verbosity": "low"}
    plain, same = one(ask(qwen, CHAT, **body)), one(ask(qwen, CHAT, **body, **more))
    assert plain == same


@pytest.mark.parametrize(("path", "given"), [(CHAT, {"messages": HELLO}), ("/v1/responses", {"input": "Hello"})])
def test_a_chat_template_gets_its_variables(qwen, path, given):
    tokenizer = copy.deepcopy(qwen.policy.tokenizer)
    tokenizer.chat_template += "{% if add_generation_prompt and enable_thinking is false %}plus is{% endif %}"
    thinking = replace(qwen, chat=Chat(tokenizer, model=qwen.policy.model))

    def size(served, **variables):
        answer = ask(served, path, **given, max_tokens=1, chat_template_kwargs=variables)
        assert answer.status == 200, answer.body
        return answer.json["usage"].get("prompt_tokens") or answer.json["usage"]["input_tokens"]

    more = len(qwen.chat.encode_text("plus is"))
    assert size(thinking, enable_thinking=False) == size(thinking, enable_thinking=True) + more
    assert size(qwen, enable_thinking=False, thinking=False) == size(qwen)


def test_without_parallel_calls_only_the_first_counts(tmp_path):
    body = {"messages": HELLO, "tools": [LOOK], "max_tokens": 40}
    with open_served(str(save_chain(tmp_path, f"{CALL}\n{CALL}")), ServeSettings()) as (twice, _):
        both = one(ask(twice, CHAT, **body))["message"]["tool_calls"]
        (first,) = one(ask(twice, CHAT, **body, parallel_tool_calls=False))["message"]["tool_calls"]
    assert [call["function"] for call in both] == [first["function"]] * 2

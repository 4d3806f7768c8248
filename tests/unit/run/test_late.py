"""Late parts: the policy's own forward passes, one prompt at a time, give the values."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlvr.chat.rendering import Chat
from rlvr.checks.patient import Scripted
from rlvr.config import Config
from rlvr.config.compose import load_config
from rlvr.core.episode import ChatModel, run_episode
from rlvr.core.value import Branch
from rlvr.errors import ConfigError, UserError
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_model, build_tokenizer
from rlvr.run.late import late_grader, late_parts, refuse_late
from rlvr.run.tasks import make_chat, open_tasks
from rlvr.tasks.base import Task
from rlvr.tasks.late import LateGrader
from rlvr.types import Episode, Example, Group, LateGrade, SamplingParams
from tests.unit.chat.tokenizers import byte_tokenizer
from tests.unit.tasks.multihop_episodes import make_qa

SMALL = ("task.num_facts=4", "task.easy_examples=0", "model.init_std=0.3")


class Opened:
    def __init__(self, *overrides: str) -> None:
        self.config: Config = load_config([*SMALL, *overrides], config_name="keep_one")
        with open_tasks(self.config, "llama", {}) as tasks:
            self.task: Task = tasks.own
        assert self.task.vocabulary is not None
        tokenizer = build_tokenizer(self.task.vocabulary)
        settings: Any = self.config.model
        self.policy = HubPolicy(model=build_model(settings, tokenizer, seed=0).eval(), tokenizer=tokenizer)
        self.chat: Chat = make_chat(self.config, self.policy, self.task)

    def grader(self, room: int = 96) -> LateGrader:
        grader = late_grader(self.config, self.policy, self.chat, self.task, room)
        assert isinstance(grader, LateGrader)
        return grader

    def played(self, example: Example, *kept: str) -> Episode:
        """An episode that keeps these and answers e0."""
        said = (f"<call> keep e0 {' '.join(kept)} </call>", "<ans> e0 </ans> <eoe>")
        completions = [self.chat.encode_completion(text) for text in said]
        model = ChatModel(engine=Scripted(completions), chat=self.chat, max_context_tokens=10**9)
        params = SamplingParams(max_tokens=99, stop_ids=self.chat.stop_ids, seed=0)
        env = self.task.env(example)
        return asyncio.run(run_episode(example, env, model, lambda turn: params, sample_index=0, seed=0))

    def probability(self, example: Example, *kept: str) -> float:
        """Of the gold, by a pass over this prompt alone."""
        facts = [f"{r} {s} {name} {o}" for name, (s, r, o) in example.metadata["facts"].items() if name in kept]
        subject, relation, _ = example.metadata["asked"]
        text = " ".join([*facts, f"<q> what {relation} {subject} <ans>"])
        tokenizer: Any = self.policy.tokenizer
        with torch.no_grad():
            logits = self.policy.model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1]
        return float(torch.softmax(logits, -1)[tokenizer.convert_tokens_to_ids(example.answer)])


OPENED = Opened()


def test_the_value_is_that_of_forward_passes_one_by_one() -> None:
    example = OPENED.task.train_example(0)
    first, second = [name for name in example.metadata["facts"]][:2]
    episodes = [OPENED.played(example, *kept) for kept in ((first,), (first, second), (second, first), ("e1",), ())]
    assert [len(one.score.late["evidence"].prompts) for one in episodes] == [2, 3, 3, 0, 0]
    (group,) = OPENED.grader().groups([Group(example=example, episodes=tuple(episodes))])
    none, one, other, both = (OPENED.probability(example, *kept) for kept in ((), (first,), (second,), (first, second)))
    expected = [max(0.0, one - none), (max(0.0, both - other) + max(0.0, both - one)) / 2]
    found = [episode.score.parts["evidence"] for episode in group.episodes]
    assert found == pytest.approx([*expected, found[2], 0.0, 0.0], abs=1e-6)
    assert found[1] == pytest.approx(found[2], abs=1e-6)  # the context has the order of the facts
    assert max(expected) > 1e-4
    for before, episode in zip(episodes, group.episodes, strict=True):
        assert episode.score.late == {}
        assert episode.score.value == pytest.approx(before.score.value + episode.score.parts["evidence"])
        assert episode.score.status == before.score.status
        assert replace(episode, score=before.score) == before
        assert episode.score.diagnostics["evidence"] == episode.score.parts["evidence"]
    alone = OPENED.grader().episode(example, episodes[1]).score.parts["evidence"]
    assert alone == pytest.approx(found[1], abs=1e-6)


def test_the_weight_is_that_of_the_part() -> None:
    half = Opened("reward.parts.evidence.weight=0.5")
    example = half.task.train_example(0)
    score = half.grader().episode(example, half.played(example, *example.metadata["facts"])).score
    assert score.value == pytest.approx(0.5 * score.parts["evidence"])


def test_the_probability_of_an_answer_of_two_tokens_is_their_geometric_mean() -> None:
    example = replace(OPENED.task.train_example(0), answer="e3 e4")
    late = OPENED.played(example, *example.metadata["facts"]).score.late["evidence"]
    found = OPENED.grader().probabilities(example, late)
    tokenizer: Any = OPENED.policy.tokenizer
    for prompt, probability in zip(late.prompts, found, strict=True):
        ids = tokenizer(f"{prompt[-1].content} <ans> e3 e4")["input_ids"]
        with torch.no_grad():
            logprobs = OPENED.policy.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        by_hand = sum(float(logprobs[place - 1, ids[place]]) for place in (-2, -1)) / 2
        assert math.log(probability) == pytest.approx(by_hand, abs=1e-5)


def test_prompt_and_answer_must_fit_together() -> None:
    example = OPENED.task.train_example(0)
    episode = OPENED.played(example, next(iter(example.metadata["facts"])))
    longest = max(len(OPENED.chat.encode_prompt(prompt)) for prompt in episode.score.late["evidence"].prompts)
    needed = longest + len(OPENED.chat.encode_completion(f"<ans> {example.answer} </ans>"))
    assert OPENED.grader(room=needed).episode(example, episode).score.status != "error"
    assert OPENED.grader(room=needed - 1).episode(example, episode).score.status == "error"


def test_a_prompt_that_does_not_fit_and_a_broken_policy_are_errors_and_no_zeros() -> None:
    example = OPENED.task.train_example(0)
    episode = OPENED.played(example, *example.metadata["facts"])
    short = OPENED.grader(room=12).episode(example, episode).score
    broken = Opened()
    grader = broken.grader()
    torch.nn.init.constant_(broken.policy.model.get_output_embeddings().weight, math.nan)
    for score in (short, grader.episode(example, episode).score):
        assert score.status == "error"
        assert math.isnan(score.value)
        assert str(score.diagnostics["error"]).startswith("evidence: a prompt to read is longer")
        assert score.parts == {"correct": 0.0}


def test_without_such_a_part_nothing_is_read() -> None:
    plain = Opened("reward=two_hop")
    grader = late_grader(plain.config, plain.policy, plain.chat, plain.task, 96)
    assert not isinstance(grader, LateGrader)
    example = plain.task.train_example(0)
    group = Group(example=example, episodes=(plain.played(example, "e1"),))
    assert grader.groups([group]) == [group]
    assert grader.episode(example, group.episodes[0]) == group.episodes[0]
    refuse_late(plain.config, plain.task)


def test_a_part_of_a_mix_is_found() -> None:
    parts = "task.parts={gsm8k:1,musique:{set:['reward.parts.evidence.type=evidence']}}"
    config = load_config(["task=mix", parts, "model.name_or_path=none"], config_name="gsm8k")
    mixed: Any = SimpleNamespace(name="mix", eval_sets=lambda: [SimpleNamespace(name=n) for n in ("gsm8k", "musique")])
    assert late_parts(config, mixed) == ["evidence"]
    alone: Any = SimpleNamespace(name="gsm8k", eval_sets=lambda: [])
    assert late_parts(config, alone) == []


def test_prompts_are_read_with_the_tools_of_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Branch]()

    def logprobs(policy: object, branches: Sequence[Branch], **_: Any) -> list[float]:
        read.extend(branches)
        return [-1.0] * len(branches)

    monkeypatch.setattr("rlvr.tasks.late.branch_logprobs", logprobs)
    task, chat = make_qa(), Chat(byte_tokenizer(), ())
    example = task.train_example(0)
    tools = task.env(example).tools
    policy: Any = None
    grader = LateGrader(policy=policy, chat=chat, task=task, layout="shared", max_context_tokens=10**6)
    late = LateGrade(weight=1.0, prompts=(example.messages,), value=sum)
    assert grader.probabilities(example, late) == [pytest.approx(math.exp(-1 / len(read[0].counted)))]
    assert read[0].prompt_ids == chat.encode_prompt(example.messages, tools)
    assert "final_answer" in chat.decode(read[0].ids)


def test_an_endpoint_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match=r"^reward.parts.evidence: needs the probabilities .*evidence=null\.$"):
        refuse_late(OPENED.config, OPENED.task)


def test_the_first_of_several_parts_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.run.late.late_parts", lambda config, task: ["one", "two"])
    with pytest.raises(UserError, match=r"^reward.parts.one: needs .* leave it out with reward.parts.one=null\.$"):
        refuse_late(OPENED.config, OPENED.task)


def test_sharded_weights_are_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^trainer.strategy=fsdp2: .* type evidence.*trainer.strategy=ddp\.$"):
        load_config(["trainer.strategy=fsdp2"], config_name="keep_one")

import ast
import asyncio
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import rlvr
from rlvr.core.env import TurnText
from rlvr.core.episode import Sampling, run_episode, turn_texts
from rlvr.core.world import ALONE, World
from rlvr.errors import ConfigError, UserError
from rlvr.evaluation.evaluate import (
    UNKEPT,
    Session,
    check_answered,
    check_failures,
    conclude,
    examples_of,
    grade,
    play_set,
)
from rlvr.evaluation.intervals import wilson
from rlvr.evaluation.players import MAX_REPLY_CHARS, LocalPlayer, played
from rlvr.evaluation.records import RecordFile
from rlvr.evaluation.summary import EvaluationResult
from rlvr.reasoning import THINK
from rlvr.records.graded import SCHEMA, EvaluationRecord
from rlvr.records.jsonl import from_line, to_json
from rlvr.rewards.parts import PartsVerifier
from rlvr.tasks.rpn import Rpn, RpnTask
from rlvr.types import (
    Completion,
    Episode,
    Example,
    GradedAnswer,
    Message,
    SamplingParams,
    Score,
    StopReason,
    ToolCall,
    Turn,
)
from tests.unit.evaluation.records import record
from tests.unit.tasks.settings import make_reward

BOTH = make_reward(0.3, 0.7)
SAMPLING = SamplingParams(max_tokens=8, stop_ids=frozenset(), seed=0)


def make_task(*, seed: int = 0, reward: PartsVerifier = BOTH) -> RpnTask:
    plain = {"complexity_weights": None, "eval_complexity_weights": None, "held_out_share": 0.2}
    return RpnTask(Rpn(operators=("+", "-"), operand_range=(0, 9), modulus=10, **plain), seed, reward)


def completed(*ids: int) -> Completion:
    zeros = (0.0,) * len(ids)
    return Completion(
        token_ids=ids,
        behavior_logprobs=zeros,
        sampling_logprobs=zeros,
        stop_reason=StopReason.STOP,
        policy_version=0,
    )


class WordCodec:
    """Word i of the task's vocabulary is token i."""

    marks, opened = THINK, False

    def __init__(self, task: RpnTask) -> None:
        self.words = task.vocabulary
        self.stop_ids = frozenset({self.words.index("<eoe>")})

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.words.index(word) for word in text.split())

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[object] = ()) -> tuple[int, ...]:
        return self.encode(" ".join(message.content for message in messages))

    def parse(self, completion_ids: Sequence[int], stop_reason: StopReason, tools: Sequence[object] = ()) -> Message:
        return Message(role="assistant", content=self.decode(completion_ids))

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.words[token] for token in ids)


class ScriptedPolicy:
    """Greedy: right iff the expression has one or two operators. Sampled: right for even seeds. Always boxed."""

    policy_version = 0

    def __init__(self, task: RpnTask, codec: WordCodec) -> None:
        self.codec = codec
        self.answers = {codec.encode_prompt(e.messages): e for e in task.eval_examples(500)}
        self.requests: list[tuple[tuple[int, ...], SamplingParams]] = []
        self.waiting = self.most_waiting = 0

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: Hashable | None = None
    ) -> Completion:
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        await asyncio.sleep(0)
        self.waiting -= 1
        self.requests.append((tuple(prompt_ids), sampling))
        example = self.answers[tuple(prompt_ids)]
        is_greedy = sampling.temperature == 0
        right = example.metadata["num_operators"] < 3 if is_greedy else sampling.seed % 2 == 0
        answer = int(example.answer) if right else (int(example.answer) + 1) % 10
        return completed(*self.codec.encode(f"{answer} <eoe>"))

    def release(self, session: Hashable) -> None: ...


def run(task: RpnTask, *, num_examples: int = 60, samples: int = 0) -> tuple[EvaluationResult, ScriptedPolicy]:
    records, policy = play(task, num_examples=num_examples, samples=samples)
    return conclude(task.name, records), policy


def play(
    task: RpnTask,
    *,
    num_examples: int,
    samples: int = 0,
    world: World = ALONE,
    sampling: SamplingParams = SAMPLING,
    session: Session = UNKEPT,
) -> tuple[tuple[EvaluationRecord, ...], ScriptedPolicy]:
    codec = WordCodec(task)
    policy = ScriptedPolicy(task, codec)
    player = LocalPlayer(engine=policy, chat=codec, max_context_tokens=64)
    examples = world.share(examples_of(task, num_examples))
    sampling = replace(sampling, stop_ids=codec.stop_ids)
    return asyncio.run(play_set(player, task, examples, sampling, range(samples + 1), session)), policy


class FewQuestions:
    """Training examples that come again and again: as many different ones as `num`."""

    def __init__(self, num: int) -> None:
        self.num, self.num_drawn = num, 0

    def train_example(self, index: int) -> Example:
        self.num_drawn += 1
        return Example(id=f"e{index % self.num}", messages=(), answer="", metadata={})


@pytest.mark.parametrize(("different", "found", "drawn"), [(2, 2, 60), (3, 3, 3), (9, 3, 3)])
def test_training_examples_are_drawn_until_enough_differ_or_twenty_times_as_many(
    different: int, found: int, drawn: int
) -> None:
    task: Any = FewQuestions(different)
    assert [example.id for example in examples_of(task, 3, "train")] == [f"e{n}" for n in range(found)]
    assert task.num_drawn == drawn


def test_accuracy_is_the_share_of_exact_answers() -> None:
    metrics = run(make_task())[0].metrics
    examples = make_task().eval_examples(60)
    easy = sum(example.metadata["num_operators"] < 3 for example in examples)
    assert metrics["eval/rpn/accuracy"] == easy / 60
    assert metrics["eval/rpn/accuracy_1_operators"] == 1.0
    assert metrics["eval/rpn/accuracy_3_operators"] == 0.0
    assert metrics["eval/rpn/completion_tokens_mean"] == 2.0
    assert metrics["eval/rpn/invalid_share"] == metrics["eval/rpn/truncated_share"] == 0.0


def test_pitfall_38_the_reward_is_not_the_metric() -> None:
    """Every answer is boxed and many are wrong: the reward `boxed` is perfect, accuracy does not move."""
    results = [run(make_task(reward=make_reward(*weights)))[0].metrics for weights in ((1, 0), (0, 1), (0.3, 0.7))]
    accuracies = {metrics["eval/rpn/accuracy"] for metrics in results}
    assert len(accuracies) == 1
    assert results[0]["eval/rpn/reward"] == 1.0 > accuracies.pop()
    assert len({metrics["eval/rpn/reward"] for metrics in results}) == 3


def test_pitfall_38_the_metric_shares_no_code_with_the_rewards() -> None:
    source = (Path(rlvr.__file__).parent / "tasks" / "rpn_metric.py").read_text()
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
    assert modules == {"re", "rlvr.types"}


def test_pitfall_38_prompts_and_draws_ignore_the_run_seed() -> None:
    first, second = (run(make_task(seed=seed), samples=2)[1].requests for seed in (0, 7))
    assert first == second
    assert len({params.seed for _, params in first}) == len(first)  # and no two draws share a stream


def test_pitfall_38_every_turn_of_a_sample_has_its_own_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    async def noted(example: Example, env: Any, model: Any, sampling: Sampling, **kwargs: Any) -> Episode:
        seeds.extend(sampling(turn).seed for turn in range(3))
        return await run_episode(example, env, model, sampling, **kwargs)

    monkeypatch.setattr("rlvr.evaluation.players.run_episode", noted)
    run(make_task(), num_examples=2, samples=2)
    assert len(set(seeds)) == len(seeds) == 2 * 3 * 3


def test_pitfall_38_greedy_and_sampled_are_told_apart() -> None:
    result, policy = run(make_task(), samples=4)
    temperatures = [params.temperature for _, params in policy.requests]
    assert temperatures.count(0.0) == 60
    assert temperatures.count(1.0) == 240
    sampled = [record.correct for record in result.records if record.sample_index > 0]
    assert result.metrics["eval/rpn/sampled_accuracy"] == pytest.approx(sum(sampled) / len(sampled))
    assert result.metrics["eval/rpn/accuracy"] == run(make_task())[0].metrics["eval/rpn/accuracy"]


def test_pitfall_38_every_accuracy_has_its_interval_and_n() -> None:
    metrics = run(make_task(), samples=4)[0].metrics
    assert metrics["eval/rpn/num_examples"] == 60
    assert metrics["eval/rpn/samples_per_example"] == 4
    scores = [name for name in metrics if "accuracy" in name or "_at_" in name]
    values = [name for name in scores if not name.endswith(("_low", "_high"))]
    for name in values:
        assert metrics[f"{name}_low"] <= metrics[name] <= metrics[f"{name}_high"]
        assert metrics[f"{name}_low"] < metrics[f"{name}_high"]
    exact = wilson(round(60 * metrics["eval/rpn/accuracy"]), 60)
    assert metrics["eval/rpn/accuracy_low"] == exact.low
    assert {"eval/rpn/pass_at_2", "eval/rpn/pass_at_4", "eval/rpn/maj_at_4"} <= set(values)


def test_pitfall_38_no_evaluation_prompt_is_trained_on() -> None:
    task = make_task()
    held_out = {example.messages[0].content for example in task.eval_examples(400)}
    assert len(held_out) == 400
    trained = {task.train_example(index).messages[0].content for index in range(3000)}
    demonstrated = {task.demonstration(index, 0.5)[0] for index in range(3000)}
    assert not held_out & (trained | demonstrated)


class OwnMetric(RpnTask):
    """Notes what its metric is shown, and fails on the first `num_failures` grades."""

    num_failures = 0
    seen: tuple[TurnText, ...] = ()

    async def grade(self, example: Example, turns: Sequence[TurnText]) -> GradedAnswer:
        self.seen = tuple(turns)
        self.num_failures -= 1
        if self.num_failures >= 0:
            return GradedAnswer(answer=None, correct=False, failure="timed out after 1 s")
        return await super().grade(example, turns)


def test_pitfall_26_a_metric_may_not_fail_too_often() -> None:
    task = OwnMetric(make_task().settings, 0, BOTH)
    task.num_failures = 12
    result = run(task)[0]
    assert sum(record.failure is not None for record in result.records) == 12
    assert result.metrics["eval/rpn/num_examples"] == 48
    task.num_failures = 13
    with pytest.raises(UserError, match=r"rpn failed on 13 of 60 completions.*first: timed out after 1 s"):
        run(task)


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        ("timed out after 1 s", "raise reward.timeout_s or reward.max_memory_mb"),
        ("needed more than 512 MB of memory", "raise reward.timeout_s or reward.max_memory_mb"),
        ("ValueError: no number", "correct it"),
    ],
)
def test_pitfall_26_the_remedy_is_that_of_the_failure(failure: str, remedy: str) -> None:
    graded = [record(f"e{n}", True, failure=failure if n < 3 else None) for n in range(10)]
    with pytest.raises(UserError, match=rf"failed on 3 of 10 completions \(first: {failure}\); {remedy}, or choose"):
        check_failures("rpn", graded)


class CallingCodec(WordCodec):
    """Every completion calls a tool."""

    def parse(self, completion_ids: Sequence[int], stop_reason: StopReason, tools: Sequence[object] = ()) -> Message:
        call = ToolCall(id="call_0", name="look", arguments={"at": float("nan")})
        return Message(role="assistant", content="", tool_calls=(call,) if tools else ())

    def turn(self, prompt: str, said: str) -> Turn:
        return Turn(prompt_ids=self.encode(prompt), completion=completed(*self.encode(said)))


TOOLS = ({"type": "function", "function": {"name": "look"}},)


def test_pitfall_38_episodes_with_tools_are_recorded_by_turn() -> None:
    task = OwnMetric(make_task().settings, 0, BOTH)
    [example] = task.eval_examples(1)
    codec = CallingCodec(task)
    first, second = codec.turn("<boe> 1 =", "3 <eoe>"), codec.turn("<boe> 1 = 3 <eoe> + 4", "3 = 4 <eoe>")

    def recorded(*turns: Turn, tools: Sequence[Any] = TOOLS) -> EvaluationRecord:
        ending = {"score": Score(value=0.0), "stop_reason": StopReason.STOP}
        said = [codec.parse(turn.completion.token_ids, turn.completion.stop_reason, tools) for turn in turns]
        texts = turn_texts(codec, turns, said)
        episode = Episode(example_id="e", sample_index=0, seed=0, turns=turns, texts=texts, **ending)
        return asyncio.run(grade(task, example, played(codec, episode), 0))

    record = recorded(first, second)
    seen = [(turn.text, [call.name for call in turn.calls]) for turn in task.seen]  # by the metric
    assert seen == [("3", ["look"]), ("3 = 4", ["look"])]
    assert record.num_completion_tokens == 2 + 4
    assert record.completions == ("3 <eoe>", "3 = 4 <eoe>")
    assert [(turn.completion, turn.reply) for turn in record.turns] == [("3 <eoe>", "+ 4"), ("3 = 4 <eoe>", None)]
    assert [call.name for turn in record.turns for call in turn.calls] == ["look", "look"]
    line = json.loads(to_json(record))
    assert line["turns"][0] == {
        "completion": "3 <eoe>",
        "token_ids": list(first.completion.token_ids),
        "logprobs": list(first.completion.behavior_logprobs),
        "calls": [{"name": "look", "arguments": {"at": None}, "problem": None}],
        "reply": "+ 4",
    }
    assert from_line(SCHEMA, to_json(record)).turns[0].calls[0].arguments == {"at": None}  # NaN is no JSON
    called = recorded(first)
    assert [turn.completion for turn in called.turns] == ["3 <eoe>"]  # it had tools, and may have called one
    alone = recorded(first, tools=())
    assert [(turn.completion, turn.calls, turn.reply) for turn in alone.turns] == [("3 <eoe>", (), None)]
    assert from_line(SCHEMA, to_json(alone)) == alone
    endless = replace(second, prompt_ids=first.prompt_ids + first.completion.token_ids + (3,) * 100_000)
    assert len(recorded(first, endless).turns[0].reply or "") == MAX_REPLY_CHARS


@dataclass(frozen=True)
class Dealt:
    """What `conclude` needs of a world whose ranks have played already: it gathers every rank's list at once."""

    parts: list[list[Any]]
    size: int

    def gather_shares(self, items: list[Any]) -> list[Any]:
        assert items in self.parts
        total = sum(map(len, self.parts))
        return [self.parts[index % self.size][index // self.size] for index in range(total)]


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("samples", [0, 2])
def test_pitfall_38_several_ranks_give_the_numbers_of_one(size: int, samples: int) -> None:
    """5 examples: some ranks have more than others, or none."""
    task, whole = make_task(), run(make_task(), num_examples=5, samples=samples)[0]
    shares = [play(task, num_examples=5, samples=samples, world=World(rank=rank, size=size))[0] for rank in range(size)]
    each = samples + 1
    assert max(len(share) for share in shares) <= -(-5 // size) * each
    assert sum(map(len, shares)) == 5 * each
    dealt: Any = Dealt([[s[i : i + each] for i in range(0, len(s), each)] for s in shares], size)
    for share in shares:
        result = conclude(task.name, share, world=dealt)
        assert result.metrics == whole.metrics
        keys = [(record.example_id, record.sample_index) for record in result.records]
        assert keys == [(record.example_id, record.sample_index) for record in whole.records]


def test_no_more_episodes_than_allowed_run_at_the_same_time() -> None:
    seen = list[tuple[int, int]]()
    session = Session(max_running=3, on_progress=lambda *told: seen.append(told))
    _, policy = play(make_task(), num_examples=10, samples=1, session=session)
    assert len(policy.requests) == 20
    assert policy.most_waiting <= 3
    assert seen == [(done, 20) for done in range(1, 21)]


def test_pitfall_38_a_greedy_request_has_nothing_left_of_chance() -> None:
    chance = replace(SAMPLING, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1)
    _, policy = play(make_task(), num_examples=1, samples=1, sampling=chance)
    drawn = {params.temperature: (params.top_p, params.top_k, params.min_p) for _, params in policy.requests}
    assert drawn == {0.0: (1.0, 0, 0.0), 0.7: (0.9, 5, 0.1)}


def test_pitfall_38_a_record_of_another_gold_is_asked_again(tmp_path: Path) -> None:
    first, _ = play(make_task(), num_examples=3)
    with RecordFile(tmp_path / "F.jsonl", {""}) as file:
        for one in [first[0], replace(first[1], expected="no digit")]:
            file.add(one)
        found, policy = play(make_task(), num_examples=3, session=Session(file=file))
        assert len(policy.requests) == 2
        assert list(file.known("").values()) == list(found)
    assert found[0] is first[0]
    assert [one.expected for one in found] == [one.expected for one in first]


def test_pitfall_26_an_accuracy_needs_a_greedy_answer() -> None:
    greedy = replace(record("e0", False), failure="timed out")
    samples = [record("e0", True, sample=number) for number in range(1, 10)]  # a tenth failed, fewer than the limit
    with pytest.raises(UserError, match="failed on 1 of 10 completions"):
        check_failures("rpn", [greedy, *samples])
    check_failures("rpn", [replace(greedy, failure=None), *samples])


@pytest.mark.parametrize("count", [1, 999, 1001])
def test_an_endpoint_may_fail_on_a_fifth_of_the_episodes(count: int) -> None:
    """Those that were played and could not be graded are another matter."""
    unplayed = [record(f"e{n}", False, turns=(), failure=f"no {n}") for n in range(count)]
    graded = [record(f"x{n}", False, failure="timed out" if n < count else None) for n in range(4 * count)]
    check_answered([*unplayed, *graded])
    failed = [*unplayed, record("more", False, turns=(), failure="late")]
    said = (
        f"{count + 1:,} of {5 * count + 1:,} episodes could not be played (first: no 0); fix the endpoint and run the"
    )
    with pytest.raises(UserError) as caught:
        check_answered([*failed, *graded])
    assert str(caught.value).startswith(said)


def test_held_out_examples_are_as_many_as_wanted_or_there_are() -> None:
    task = make_task()
    assert [one.id for one in examples_of(task, 7)] == [one.id for one in task.eval_examples(500)[:7]]
    with pytest.raises(ConfigError, match="task rpn gives no held-out example for num_examples=0: ask for more"):
        examples_of(task, 0)
    train = examples_of(task, 9, "train")
    assert [one.id for one in train] == list(dict.fromkeys(task.train_example(n).id for n in range(180)))[:9]

"""`rlvr eval` and `rlvr predict` on a run folder with an untrained model: output and errors."""

import argparse
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.model_arguments import settings_of
from rlvr.commands.eval import failures, table
from rlvr.commands.predict import _print, _read_prompts, steps
from rlvr.config.compose import load_config, to_run_yaml
from rlvr.errors import UserError
from rlvr.evaluation import evaluate
from rlvr.models.policy import HubPolicy
from rlvr.models.scratch import build_model, build_tokenizer
from rlvr.records.graded import EvaluationRecord, GradedTurn, read_records
from rlvr.records.rollouts import CallRecord
from rlvr.run.sources import inference_config
from rlvr.run.tasks import open_tasks
from rlvr.tracking.episodes import by_turn
from rlvr.types import StopReason
from tests.system.small_qwen import save_small_qwen
from tests.unit.cli.conftest import Rlvr
from tests.unit.evaluation import records


def without_clock(line: dict[str, Any]) -> dict[str, Any]:
    """All but the clock and the last bits of logprobs, which depend on the batch."""
    turns = [turn | {"logprobs": [round(value, 4) for value in turn["logprobs"]]} for turn in line["turns"]]
    return line | {"time_s": 0.0, "turns": turns}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """config.yaml and final/ of a run whose model knows nothing."""
    config = load_config([], config_name="rpn_test")
    with open_tasks(config, None, {}) as tasks:
        tokenizer = build_tokenizer(tasks.own.vocabulary)
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.yaml").write_text(to_run_yaml(config))
    HubPolicy(model=build_model(config.model, tokenizer, seed=0).eval(), tokenizer=tokenizer).save(folder / "final")
    return folder


def test_eval_prints_accuracy_with_its_interval(run_folder: Path, rlvr: Rlvr) -> None:
    ran = rlvr("eval", run_folder, "--num-examples", 8, "--samples-per-example", 2)
    assert (ran.code, ran.err) == (0, "")
    assert [word for word in ("8 held-out examples", "accuracy", "pass@2", " to ") if word not in ran.out] == []


def test_eval_json_is_one_line_with_metric_n_and_interval(run_folder: Path, rlvr: Rlvr) -> None:
    [line] = rlvr("eval", run_folder, "--num-examples", 8, "--json").lines
    # a model folder inside a run uses the run's task
    assert [line] == rlvr("eval", run_folder / "final", "--num-examples", 8, "--json").lines
    assert line["eval/rpn/num_examples"] == 8
    assert line["eval/rpn/accuracy_low"] <= line["eval/rpn/accuracy"] <= line["eval/rpn/accuracy_high"]
    assert line["split"] == "test"


def json_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_eval_output_holds_every_completion(run_folder: Path, tmp_path: Path, rlvr: Rlvr) -> None:
    output = tmp_path / "new" / "records.jsonl"
    options = ("--num-examples", 3, "--samples-per-example", 2, "--output", output, "--json")
    [line] = rlvr("eval", run_folder, *options).lines
    records = json_of(output)
    assert [record["sample_index"] for record in records] == [0, 1, 2] * 3
    right = sum(record["correct"] for record in records if record["sample_index"] == 0)
    assert line["eval/rpn/accuracy"] == right / 3


@pytest.mark.slow
def test_pitfall_38_conditions_are_of_the_request_only(run_folder: Path, tmp_path: Path, rlvr: Rlvr) -> None:
    told = []
    lines = "rollout.max_completion_tokens=7", "task.max_prompt_tokens=21", "reward.parts.correct.weight=1.0"
    for number, words in enumerate([(), *(("--set", line) for line in lines)]):
        output = tmp_path / f"{number}.jsonl"
        assert rlvr("eval", run_folder, "--num-examples", 1, "--output", output, *words).code == 0
        told.append(read_records(output)[0][0])
    assert len({one.settings for one in told}) == 4
    assert told[0].conditions == told[3].conditions
    assert len({one.conditions for one in told[:3]}) == 3


def test_predict_prints_steps_and_grade(run_folder: Path, rlvr: Rlvr) -> None:
    ran = rlvr("predict", run_folder, "--prompt", "3  4 +")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("3 4 +\n")
    assert "7" in ran.out.splitlines()[-1]  # the right answer is named, whatever the model said


def test_predict_json_and_input_and_output_agree(run_folder: Path, tmp_path: Path, rlvr: Rlvr) -> None:
    [one] = rlvr("predict", run_folder, "--prompt", "3 4 +", "--json").lines
    assert (one["example_id"], one["expected"]) == ("3 4 +", "7")
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "3 4 +"}\n\n{"prompt": "5 5 + 1 +"}\n')
    assert rlvr("predict", run_folder, "--input", source, "--output", output).out == ""
    first, second = json_of(output)
    assert without_clock(first) == without_clock(one)
    assert second["expected"] == "11"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["predict", "RUN", "--prompt", "3 + 4"], 2, "'3 + 4' is not an expression in reverse Polish notation"),
        (["predict", "RUN"], 2, "nothing to predict"),
        (["predict", "RUN", "--input", "TMP/bad.jsonl"], 1, "bad.jsonl, line 2: not a JSON object"),
        (["eval", "TMP/none"], 1, "there is no folder"),
        (["eval", "TMP/bare"], 2, "no run folder and so has no task of its own: add --task"),
        (["eval", "TMP/bare", "--task", "rpn_test"], 1, "has no tokenizer"),
        (["eval", "TMP/empty_run"], 1, "has neither final/ nor a checkpoint yet"),
        (["eval", "RUN", "--task", "rnp"], 2, "--task rnp: there is no such configuration; did you mean rpn?"),
        (["eval", "RUN", "--set", "algorithm=ppo"], 2, "only rlvr train reads algorithm; leave it out"),
        (["benchmark", "--output-dir", "TMP/b", "--set", "+trainer.max_steps=1"], 2, "only rlvr train reads trainer."),
        (["eval", "RUN", "--retriever", "bm25"], 2, "task.retriever=bm25: task=rpn has no such key; task=hotpotqa or"),
        (["eval", "RUN", "--split", "tset"], 2, "there is no split tset; did you mean test?"),
        (["eval", "TMP/empt_run"], 1, "did you mean TMP/empty_run?"),
        (["eval", "RUN", "--task", "musique", "--retriever", "bm52"], 2, "no such retriever; did you mean bm25?"),
        (["eval", "RUN", "--temperature", "0.5"], 2, "nothing is sampled, and greedy answers have none"),
        (["predict", "RUN", "--prompt", "3 4 +", "--top-p", "0.5"], 2, "add --num-samples K"),
        (["eval", "RUN", "--num-examples", "2", "--output", "TMP/notes"], 1, "holds no records of an evaluation"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], code: int, sentence: str, run_folder: Path, tmp_path: Path, rlvr: Rlvr
) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "3 4 +"}\n["3 4 +"]\n')
    (tmp_path / "notes").write_text("mine\n")
    shutil.copytree(run_folder / "final", tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    (tmp_path / "empty_run").mkdir()
    shutil.copy(run_folder / "config.yaml", tmp_path / "empty_run")
    ran = rlvr(*(word.replace("RUN", str(run_folder)).replace("TMP", str(tmp_path)) for word in words))
    assert (ran.code, ran.out) == (code, "")
    assert sentence.replace("TMP", str(tmp_path)) in ran.err
    assert "Traceback" not in ran.err
    assert ran.err.strip().splitlines()[-1].startswith("rlvr: error: ")


def test_failures_show_wrong_answers_greedy_first() -> None:
    wrong = record("5 \x1b[2J <eoe>", "5")
    sampled = replace(wrong, sample_index=3, example_id="of a sample")
    right = record("0 <eoe>", "0", correct=True)
    failed = replace(right, correct=False, turns=(), answer=None, failure="the endpoint failed: 500: \x1b]0;x")
    shown = failures([right, sampled, wrong, failed], 10)
    heads = [line for line in shown.splitlines() if line.startswith("----")]
    assert heads == [*["---- 3 4 + 5 *"] * 2, "---- of a sample"]
    assert "answer 5: wrong, 0 is right" in shown
    assert "no grade: the endpoint failed: 500: \\x1b]0;x" in shown
    assert "\x1b" not in shown
    assert failures([right], 10) == "every answer was right\n"
    assert failures([wrong] * 3, 1).endswith("... and 2 more\n")


@pytest.mark.parametrize(("words", "most"), [((), 256), (("--batch-size", 3), 3)])
def test_predict_plays_this_number_of_episodes_at_a_time(
    words: tuple[Any, ...], most: int, run_folder: Path, rlvr: Rlvr, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, play = list[int | None](), evaluate.play_set

    async def noted(player: Any, task: Any, examples: Any, sampling: Any, samples: Any, session: Any) -> Any:
        seen.append(session.max_running)
        return await play(player, task, examples, sampling, samples, session)

    monkeypatch.setattr(evaluate, "play_set", noted)
    assert rlvr("predict", run_folder, "--num-examples", 1, *words).code == 0
    assert seen == [most]


def test_predict_samples_several_answers(run_folder: Path, rlvr: Rlvr) -> None:
    words = ("predict", run_folder, "--prompt", "3 4 +", "--num-samples", 3, "--temperature", 1.5)
    lines = rlvr(*words, "--json").lines
    assert [line["sample_index"] for line in lines] == [1, 2, 3]
    assert {line["split"] for line in lines} == {"prompts"}
    assert len({tuple(line["turns"][0]["token_ids"]) for line in lines}) > 1
    assert rlvr(*words).out.count("3 4 +\n=") == 3


@pytest.mark.slow
def test_task_names_a_second_set_of_the_run(run_folder: Path, tmp_path: Path) -> None:
    """--task NAME is the run's second set with its settings; any other name is not."""
    config = load_config(["evaluation.also={more: {task: rpn, set: ['task.modulus=11']}}"], config_name="rpn_test")
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    (run / "config.yaml").write_text(to_run_yaml(config))
    alone = inference_config(str(run), ["rollout.max_completion_tokens=9"], task="more")
    assert (alone.task.modulus, alone.rollout.max_completion_tokens, alone.evaluation.also) == (11, 9, {})
    own = inference_config(str(run), [])
    assert (own.task, list(own.evaluation.also)) == (config.task, ["more"])
    assert inference_config(str(run), [], task="rpn").evaluation.also == {}


@pytest.mark.parametrize("retriever", ["golden", "semantic/some folder/model=1,2"])
def test_the_retriever_is_that_of_the_command(retriever: str) -> None:
    args = argparse.Namespace(model="nowhere", task="musique", retriever=retriever, config_dir=None)
    task = settings_of(args, ["task.top_n=2"]).task
    assert (task.retriever, task.top_n) == (retriever, 2)


def record(completion: str, answer: str | None, *, correct: bool = False, **changes: Any) -> EvaluationRecord:
    turns = (GradedTurn(completion=completion),)
    rest = {"prompt": "<boe> 3 4 + 5 * =", "turns": turns, "expected": "0", "answer": answer}
    return records.record("3 4 + 5 *", correct, **rest | changes)


@pytest.mark.parametrize(
    ("made", "end"),
    [
        (record("0 5 * = 0 <eoe>", "0", correct=True), "= 0 5 *\n= 0\nanswer 0: right\n"),
        (record("2 <eoe>", "2"), "= 2\nanswer 2: wrong, 0 is right\n"),
        (record("2 2 <eoe>", None), "= 2 2\nthe model gave no answer; 0 is right\n"),
        (record("2 <eoe>", None, failure="timed out after 5 s"), "= 2\nno grade: timed out after 5 s\n"),
        (
            record("2 2 2", None, stop_reason=StopReason.LENGTH),
            "= 2 2 2\nthe model was cut off before an answer; 0 is right\n",
        ),
    ],
)
def test_each_step_has_a_line(made: EvaluationRecord, end: str) -> None:
    assert steps(made) == f"3 4 + 5 *\n{end}"


def test_an_episode_with_tools_is_shown_turn_by_turn() -> None:
    call = CallRecord(name="search", arguments={"name": "p3"}, problem=None)
    turns = (
        GradedTurn(completion="<call> search p3 </call>", calls=(call,), reply="<tool> \x1b[2J o7"),
        GradedTurn(completion="<ans> c4 </ans>", reply=None),
    )
    assert by_turn(record("", "c4", turns=turns)).splitlines() == [
        "---- 3 4 + 5 *",
        "prompt    <boe> 3 4 + 5 * =",
        "turn 1    <call> search p3 </call>",
        '          calls search(name="p3")',
        "reply     <tool> \\x1b[2J o7",
        "turn 2    <ans> c4 </ans>",
        "answer c4: wrong, 0 is right",
    ]


def test_numbers_by_kind_have_a_table() -> None:
    def score(name: str) -> dict[str, float]:
        return {f"eval/m/{name}": 0.5, f"eval/m/{name}_low": 0.25, f"eval/m/{name}_high": 0.75}

    metrics = {"eval/m/num_examples": 4.0} | score("accuracy") | score("accuracy_2_hops") | score("accuracy_4_hops")
    metrics |= {"eval/m/answer_f1": 0.375, "eval/m/answer_f1_2_hops": 0.25, "eval/m/answer_f1_4_hops": 0.5}
    metrics |= {"eval/m/part_citation": 0.25, "eval/m/part_citation_4_hops": 0.75}
    lines = table("runs/x", "m", "test", metrics).splitlines()
    assert [line.split() for line in lines[5:]] == [
        ["answer", "f1", "0.38"],
        ["part", "citation", "0.25"],
        [],
        ["2", "hops", "4", "hops"],
        ["answer", "f1", "0.25", "0.50"],
        ["part", "citation", "0.75"],
    ]


def test_predict_streams_to_a_terminal(run_folder: Path, rlvr: Rlvr, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("predict", run_folder, "--prompt", "3 4 +")
    elsewhere = rlvr(*words).out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    written: list[str] = []
    write = sys.stdout.write
    monkeypatch.setattr(sys.stdout, "write", lambda text: (written.append(text), write(text))[1])
    assert rlvr(*words).out.split() == elsewhere.split()
    assert len(written) >= 4  # the problem, each token, the grade
    assert len(rlvr(*words, "--json").lines) == 1


@pytest.mark.slow
def test_evaluation_reads_no_training_data(tmp_path: Path, rlvr: Rlvr) -> None:
    """A question of the user reads no data at all."""
    model, rows, questions = save_small_qwen(tmp_path / "model"), tmp_path / "rows.jsonl", tmp_path / "questions.jsonl"
    rows.write_text('{"question": "What is 1 + 1?", "answer": "2"}\n')
    questions.write_text('{"question": "What is 2 + 2?"}\n\n{"prompt": "What is 3 + 3?"}\n')
    asked = ("--task", "jsonl", "--set", f"task.path={tmp_path / 'absent.jsonl'}", "--json")
    asked += ("--set", "rollout.max_completion_tokens=4")
    assert rlvr("eval", model, *asked, "--set", f"task.eval_path={rows}").code == 0
    assert rlvr("predict", model, *asked, "--prompt", "What is 2 + 2?").code == 0
    assert "What is 2 + 2?" in rlvr("predict", model, *asked, "--input", questions).out
    assert rlvr("eval", model, *asked).code != 0


@pytest.mark.slow
def test_eval_of_the_train_split_uses_other_examples(run_folder: Path, tmp_path: Path, rlvr: Rlvr) -> None:
    ids = {}
    for split in ("test", "train"):
        output = tmp_path / f"{split}.jsonl"
        assert rlvr("eval", run_folder, "--num-examples", 20, "--split", split, "--output", output).code == 0
        ids[split] = {line["example_id"] for line in json_of(output)}
    assert len(ids["test"]) == len(ids["train"]) == 20
    assert not ids["test"] & ids["train"]


def printed(capsys: pytest.CaptureFixture[str], *found: EvaluationRecord, **options: Any) -> str:
    given = {"output": None, "prompt": None, "json": False} | options
    rpn, live = given.pop("rpn", False), given.pop("live", False)
    _print(argparse.Namespace(**given), found, rpn=rpn, live=live)
    return capsys.readouterr().out


def test_what_predict_prints_of_its_records(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a prompt the answer or, of an expression, its steps; turn by turn where there are several or calls; else
    JSON. Of what was streamed the grade alone; nothing where a file gets it, unless asked for."""
    plain, other = record("so: \x1b 7 ", "7", correct=True), record("2 <eoe>", "2")
    call = CallRecord(name="search", arguments={}, problem=None)
    two_turns = record("", "7", turns=(GradedTurn(completion="a", reply="b"), GradedTurn(completion="c")))
    one_call = record("", "7", turns=(GradedTurn(completion="a", calls=(call,)),))
    none = record("", None, turns=(), failure="it broke")
    asked = {"prompt": "3 4 +"}
    assert printed(capsys, plain, **asked) == "so: \\x1b 7\nanswer 7: right\n"
    assert printed(capsys, plain, other, **asked).splitlines()[2:] == ["", "2 <eoe>", "answer 2: wrong, 0 is right"]
    assert printed(capsys, none, **asked) == "\nno grade: it broke\n"
    assert printed(capsys, other, **asked, rpn=True) == "3 4 + 5 *\n= 2\nanswer 2: wrong, 0 is right\n"
    assert printed(capsys, plain, **asked, live=True) == "\nanswer 7: right\n"
    for shown in (two_turns, one_call):
        assert printed(capsys, plain, shown) == f"{by_turn(plain)}\n{by_turn(shown)}"
        assert printed(capsys, shown, **asked) == by_turn(shown)
    for options in ({}, {"json": True}, {**asked, "json": True}, {**asked, "json": True, "output": "f"}):
        lines = printed(capsys, plain, other, **options).splitlines()
        assert [json.loads(line)["answer"] for line in lines] == ["7", "2"]
    assert json.loads(printed(capsys, two_turns, json=True))["answer"] == "7"
    assert printed(capsys, plain, output="f") == ""
    assert printed(capsys, plain, output="f", **asked) == "so: \\x1b 7\nanswer 7: right\n"


def test_eval_counts_one_example_and_prints_percent() -> None:
    metrics = {"num_examples": 1.0, "accuracy": 0.5, "accuracy_low": 0.125, "accuracy_high": 0.875, "reward": 0.25}
    named = {f"eval/m/{name}": value for name, value in metrics.items()}
    assert table("runs/x", "m", "test", named).splitlines() == [
        "runs/x on m, 1 held-out example",
        f"{'':36}mean   95 % interval".replace("mean", "    "),
        f"{'accuracy':32}{'50.0%':>8}   12.5% to 87.5%",
        f"{'reward':32}{'0.25':>8}",
    ]
    assert table("x", "m", "train", named | {"eval/m/num_examples": 2.0}).startswith("x on m, 2 training examples\n")


def test_failures_are_greedy_ones_first_and_the_others_counted() -> None:
    wrong = [replace(record("2 <eoe>", "2"), example_id=f"e{n}", sample_index=n % 2) for n in range(1500)]
    shown = failures(wrong, 2)
    assert [line for line in shown.splitlines() if line.startswith("----")] == ["---- e0", "---- e2"]
    assert shown.endswith("\n... and 1,498 more\n")
    assert "more" not in failures(wrong[:2], 2)


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ('{"prompt": "a", "question": "b"}', "a"),
        ('{"question": "b"}', "b"),
        ('{"prompt": ""}', ""),
        ('{"prompt": null, "question": "b"}', None),
        ('{"text": "a"}', None),
        ("7", None),
        ("[" * 100_000, None),
    ],
)
def test_prompts_of_a_file_are_named_by_their_line(line: str, prompt: str | None, tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text(f'\n{{"prompt": "first"}}\n  \n{line}\n')
    if prompt is None:
        with pytest.raises(UserError, match=r'f\.jsonl, line 4: not a JSON object with a "prompt" or "question"'):
            _read_prompts(str(tmp_path / "f.jsonl"))
    else:
        assert _read_prompts(str(tmp_path / "f.jsonl")) == ["first", prompt]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to predict; add --prompt"),
        (("--num-samples", 2), "nothing to predict; add --prompt"),
        (("--input", "f.jsonl", "--output", "./f.jsonl"), "--output ./f.jsonl: is also the --input; choose another"),
    ],
)
def test_predict_refuses_before_it_loads(words: tuple[Any, ...], said: str, rlvr: Rlvr) -> None:
    ran = rlvr("predict", "nowhere", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err

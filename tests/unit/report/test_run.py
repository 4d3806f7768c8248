import json
from itertools import count
from pathlib import Path

import pytest

from rlvr.cli.main import main
from rlvr.errors import UserError
from rlvr.records.checks import Check, write_checks
from rlvr.records.history import History
from rlvr.report.run import PageLimits, write_run_report
from rlvr.report.sweep import mean_score, sweep_table
from tests.unit.report.runs import chunk_of, episode, save_run, save_tokenizer


def test_a_run_becomes_one_page(tmp_path: Path) -> None:
    metrics = {
        0: {"eval/rpn/accuracy": 0.25, "eval/rpn/accuracy_low": 0.2, "eval/rpn/accuracy_high": 0.3},
        3: {"reward/mean": 1.0, "eval/rpn/accuracy": 0.5, "eval/rpn/accuracy_low": 0.4, "eval/rpn/accuracy_high": 0.6},
    }
    report = write_run_report([save_run(tmp_path / "run", metrics=metrics)])
    assert report.path == tmp_path / "run" / "report.html"
    assert (report.num_episodes, report.num_left_out, report.notes) == (3, 0, [])
    html = report.path.read_text()
    main_chunk = chunk_of(html, "main")
    assert main_chunk["facts"] == [
        ["task", "rpn"], ["model", "scratch"], ["algorithm", "grpo"], ["step", "3 of 3"],
        ["held-out accuracy", "0.250 \u2192 0.500 (95 % interval 0.400 to 0.600)"],
    ]  # fmt: skip
    assert main_chunk["runs"][0]["steps"] == [0, 3]
    assert main_chunk["runs"][0]["settings"].startswith("name: rpn")
    assert chunk_of(html, "tokens-0")["6"] == "<eoe>"


def test_pitfall_37_a_run_that_goes_on_is_written_anew(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", metrics={1: {"reward/mean": 0.1}}, rollouts={1: [episode()]}, tokenizer=False)
    first = write_run_report([run])
    text = first.path.read_text()
    assert ["step", "1 of 3, not finished"] in chunk_of(text, "main")["facts"]
    assert first.notes == [f"There is no tokenizer.json in {run} yet: tokens are shown by their ids."]
    (run / "metrics.jsonl").unlink()
    save_run(run, metrics={1: {"reward/mean": 0.1}, 2: {"reward/mean": 0.2}}, rollouts={2: [episode()]})
    second = write_run_report([run])
    assert (second.path, second.num_episodes, second.notes) == (first.path, 2, [])
    assert chunk_of(second.path.read_text(), "main")["runs"][0]["steps"] == [1, 2]


def test_an_empty_run_has_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    report = write_run_report([tmp_path])
    assert (report.num_episodes, len(report.notes)) == (0, 2)
    assert chunk_of(report.path.read_text(), "main")["episodes"] == 0


def test_two_runs_share_a_page_and_keep_their_names(tmp_path: Path) -> None:
    runs = [save_run(tmp_path / name / "run") for name in ("a", "b")]
    report = write_run_report(runs, tmp_path / "both.html")
    html = report.path.read_text()
    assert [run["name"] for run in chunk_of(html, "main")["runs"]] == [str(run) for run in runs]
    assert [file["run"] for file in chunk_of(html, "index")["files"]] == [0, 0, 0, 1, 1, 1]


def test_a_sweep_is_one_page_with_a_table_over_its_seeds(tmp_path: Path) -> None:
    for number, score in enumerate((0.5, 0.7, 0.6)):
        metrics = {0: {"eval/rpn/accuracy": 0.1}, 3: {"eval/rpn/accuracy": score}}
        save_run(tmp_path / f"seed-{8 + number}", metrics=metrics, seed=number)
    assert main(["report", str(tmp_path)]) == 0
    found = chunk_of((tmp_path / "report.html").read_text(), "main")
    assert [run["name"] for run in found["runs"]] == ["seed-8", "seed-9", "seed-10"]
    half = 4.303 * 0.1 / 3**0.5
    interval = f"0.600 ({0.6 - half:.3f} to {0.6 + half:.3f})"
    assert found["sweep"][1:] == [["all runs", "3", interval, "0.500, 0.700, 0.600"]]


def test_runs_of_the_users_own_task_have_their_scores(tmp_path: Path) -> None:
    """Its name is `my_shop:Shop`, its metrics are those of `shop`."""
    for seed, score in enumerate((0.5, 0.7)):
        run = save_run(tmp_path / f"seed-{seed}", metrics={3: {"eval/shop/accuracy": score}}, seed=seed)
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("  name: rpn\n", "  name: my_shop:Shop\n"))
    found = chunk_of(write_run_report([tmp_path]).path.read_text(), "main")
    assert found["sweep"][1][-1] == "0.500, 0.700"
    scores = [value for name, value in found["facts"] if name == "held-out accuracy"]
    assert scores == ["0.500 \u2192 0.500", "0.700 \u2192 0.700"]


def test_a_pruned_run_says_so(tmp_path: Path) -> None:
    for name, step, score in (("trial-0", 3, 0.8), ("trial-1", 2, 0.2)):
        save_run(tmp_path / name, metrics={step: {"eval/rpn/accuracy": score}})
    (tmp_path / "trial-1" / "pruned.txt").write_text("it lies below trial-0\n")
    found = chunk_of(write_run_report([tmp_path]).path.read_text(), "main")
    assert [value for name, value in found["facts"] if name == "step"] == ["3 of 3", "2 of 3, pruned"]
    assert found["sweep"][1][-1] == "0.800, 0.200 (pruned at step 2)"


def test_a_failed_run_says_so_and_why(tmp_path: Path) -> None:
    for name, step, score in (("seed-0", 3, 0.8), ("seed-1", 2, 0.2)):
        save_run(tmp_path / name, metrics={step: {"eval/rpn/accuracy": score}})
    (tmp_path / "seed-1" / "error.txt").write_text("reward: it broke\n")
    found = chunk_of(write_run_report([tmp_path]).path.read_text(), "main")
    assert [value for name, value in found["facts"] if name == "step"] == ["3 of 3", "2 of 3, failed"]
    assert found["sweep"][1][-1] == "0.800, 0.200 (failed at step 2)"
    assert found["notes"] == ["seed-1 failed: reward: it broke"]


def test_runs_of_one_seed_count_once_in_the_interval() -> None:
    rows = [{"eval/rpn/accuracy": score} for score in (0.5, 0.5, 0.7)]
    settings = {"task": {"name": "rpn"}, "evaluation": {"headline": "accuracy"}}
    runs = [
        History(folder=Path(str(number)), text="", settings=settings | {"seed": seed}, rows=[row], notes=[])
        for number, (seed, row) in enumerate(zip((1, 1, 2), rows, strict=True))
    ]
    same, both = sweep_table(runs[:2])[1], sweep_table(runs)[1]
    assert same == ["all runs", "2 with 1 different seed", "0.500", "0.500, 0.500"]
    assert both[1:3] == ["3 with 2 different seeds", sweep_table(runs[1:])[1][2]]


def test_the_interval_of_a_share_ends_at_0_and_1() -> None:
    assert mean_score([0.0, 0.1], is_share=True) == "0.050 (0.000 to 0.685)"
    assert mean_score([0.9, 1.0], is_share=True) == "0.950 (0.315 to 1.000)"
    assert mean_score([0.0, 0.1], is_share=False) == "0.050 (-0.585 to 0.685)"


def test_a_sweep_over_a_choice_is_told_by_its_name() -> None:
    """Not by all that the choice brings with it; what was swept beside it stays."""

    seeds = count()

    def history(name: str, clip: float, rate: float) -> History:
        settings = {
            "seed": next(seeds),
            "algorithm": {"name": name, "clip_high": clip},
            "trainer": {"learning_rate": rate},
        }
        return History(folder=Path(name), text="", settings=settings, rows=[], notes=[])

    plain = [history("grpo", 0.2, 1e-3), history("dapo", 0.28, 1e-3), history("dapo", 0.28, 1e-3)]
    assert [row[:2] for row in sweep_table(plain)[1:]] == [["algorithm=grpo", "1"], ["algorithm=dapo", "2"]]
    both = sweep_table([history("grpo", 0.2, 1e-3), history("dapo", 0.28, 1e-4), history("dapo", 0.3, 1e-4)])
    assert [row[0] for row in both[1:]][-1] == "algorithm=dapo algorithm.clip_high=0.3 trainer.learning_rate=0.0001"


def test_pitfall_06_each_run_has_the_texts_of_its_own_tokens(tmp_path: Path) -> None:
    """Two models, two vocabularies: id 6 is another word in each."""
    runs = [save_run(tmp_path / name) for name in ("a", "b")]
    save_tokenizer(runs[1] / "final", [f"word{number}" for number in range(7)])
    html = write_run_report(runs, tmp_path / "both.html").path.read_text()
    assert chunk_of(html, "tokens-0")["6"] == "<eoe>"
    assert chunk_of(html, "tokens-1")["6"] == "word6"


@pytest.mark.slow
def test_pitfall_38_above_the_limits_a_page_is_a_sample(tmp_path: Path) -> None:
    rollouts = {
        step: [episode(sample=sample, completion=f"{step * sample * 7919 % 999_983}") for sample in range(300)]
        for step in range(1, 11)
    }
    run = save_run(tmp_path / "run", rollouts=rollouts)
    few = write_run_report([run], limits=PageLimits(max_episodes=100))
    assert (few.num_episodes, few.num_left_out) == (100, 2900)
    assert "2,900 of 3,000 recorded episodes are left out" in few.notes[-1]
    whole = write_run_report([run])
    assert whole.num_left_out == 0
    small = write_run_report([run], limits=PageLimits(max_mb=whole.size / 2e6 + 0.1))
    assert 0 < small.num_episodes < 3000
    assert small.size < whole.size / 2 + 100_000
    assert small.notes[-1] in chunk_of(small.path.read_text(), "main")["notes"]


def test_the_command_says_what_it_wrote_and_what_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = save_run(tmp_path / "run")
    (run / "rollouts" / "step_000002.jsonl.gz").write_bytes(b"x")
    assert main(["report", str(run), "--output", str(tmp_path / "r.html"), "--json"]) == 0
    output = capsys.readouterr()
    facts = json.loads(output.out)
    assert facts["report"] == str(tmp_path / "r.html")
    assert (facts["episodes"], facts["left_out"], facts["bytes"]) == (2, 0, (tmp_path / "r.html").stat().st_size)
    assert "step_000002.jsonl.gz is damaged" in output.err
    assert main(["report", str(run), "--max-episodes", "1"]) == 0
    assert "report.html: 1 episode, 0." in capsys.readouterr().out


def test_what_commands_found_about_a_run_is_in_its_page(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    path = write_checks(run, "doctor", [Check(name="one_bos", status="fail", says="two", evidence={"ids": [1, 1]})])
    assert path == tmp_path / "run.doctor.jsonl"
    (tmp_path / "run.audit.jsonl").write_text('{"name": 1')
    report = write_run_report([run])
    (found,) = chunk_of(report.path.read_text(), "main")["runs"]
    assert [(row["name"], row["evidence"]) for row in found["checks"].pop("doctor")] == [("one_bos", {"ids": [1, 1]})]
    assert found["checks"] == {}
    assert "run.audit.jsonl is damaged and left out" in report.notes[0]


def test_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "absent")]) == 1
    assert "there is no" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--max-episodes", "0"]) == 2
    with pytest.raises(UserError, match="is no run folder"):
        write_run_report([tmp_path])

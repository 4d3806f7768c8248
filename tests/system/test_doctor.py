"""`rlvr doctor`: exit codes, JSON, and what it leaves alone."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from rlvr.commands.doctor.body import CHECKS
from tests.system.harness import Cli
from tests.system.small_qwen import save_questions, save_small_qwen
from tests.variants import variants


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command for a model that has room for its task's prompts."""
    monkeypatch.chdir(tmp_path)
    model, questions = save_small_qwen(tmp_path / "qwen"), save_questions(tmp_path / "sums.jsonl")
    settings = (f"task.path={questions}", "rollout.max_completion_tokens=16", "prompt=plain", "reward=numeric")
    return ["doctor", str(model), "--task", "jsonl", *(word for line in settings for word in ("--set", line))]


def test_a_healthy_model(cli: Cli, words: list[str], tmp_path: Path) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    out = cli.ok(*words).out
    assert "ok    gradient_is_slope" in out
    assert "[<|im_start|>" in out  # the tokens that are not trained on, in brackets
    assert " 0 failed, " in out.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_line_of_json_a_check(cli: Cli, words: list[str]) -> None:
    found = [json.loads(line) for line in cli.ok(*words, "--json").out.splitlines()]
    assert [check["name"] for check in found] == [check.__name__ for check in CHECKS]
    assert all(check.keys() == {"name", "status", "says", "evidence", "remedy", "seconds"} for check in found)
    assert {check["status"] for check in found} == {"ok", "skipped"}


def test_a_failed_check_is_exit_status_1_with_a_remedy(cli: Cli, words: list[str], tmp_path: Path) -> None:
    template = tmp_path / "qwen" / "chat_template.jinja"
    template.write_text(template.read_text().replace("{{ m['content'] }}", "{{ m['content'][:100] }}"))
    done = cli(*words)
    assert done.code == 1
    assert "FAIL  whole_messages" in done.out
    assert "do:    render message.content" in done.out


@pytest.mark.parametrize("name", variants(["first_run", "two_hop_run", "adapted"], always=2))
def test_a_runs_own_model(name: str, cli: Cli, request: pytest.FixtureRequest) -> None:
    """Tokenizers of words without a template, and adapters."""
    found = request.getfixturevalue(name)
    folder = found if isinstance(found, Path) else found[0]
    checks = [json.loads(line) for line in cli("doctor", folder, "--json").out.splitlines()]
    assert [check for check in checks if check["status"] == "fail" and "Error" in check["says"]] == []
    failed = {check["name"] for check in checks if check["status"] == "fail"}
    assert failed <= {
        "prompts_fit",
        "step_is_sized",
    }  # the small model has little room, and takes large steps
    assert len(checks) == len(CHECKS)
    passed = {check["name"] for check in checks if check["status"] == "ok"}
    assert {"gold_scores_full", "metric_agrees"} <= passed
    assert ("tools_answer" in passed) == (name == "two_hop_run")


@pytest.mark.parametrize("same", [False, True])
def test_a_run_with_a_teacher(same: bool, cli: Cli, words: list[str], tmp_path: Path) -> None:
    """The model itself teaches nothing."""
    teacher = shutil.copytree(words[1], tmp_path / "teacher")
    weights = load_file(teacher / "model.safetensors")
    more = {} if same else {name: 1.1 * weight for name, weight in weights.items()}
    save_file(weights | more, teacher / "model.safetensors", {"format": "pt"})
    done = cli(*words, "--set", "algorithm=distill", "--set", f"algorithm.teacher={teacher}")
    failed = [line.split()[1] for line in done.out.splitlines() if line.startswith("FAIL")]
    assert (done.code, failed) == ((1, ["teacher_differs"]) if same else (0, [])), done.err


def test_what_cannot_be_examined_is_refused(cli: Cli, words: list[str]) -> None:
    cli.refuses(1, ["doctor", "absent/of/this", "--task", "gsm8k"], "there is no folder absent/of/this")
    cli.refuses(2, [*words[:2]], "add --task")
    cli.refuses(2, [*words[:2], "--task", "gsm9k"], "did you mean gsm8k")
    cli.refuses(2, ["doctor", "openai:http://127.0.0.1:1/v1#x", "--task", "gsm8k"], "is an endpoint")
    cli.refuses(2, [*words, "--set", "algorithm.clip_lo=1"], "did you mean")


def test_in_python(words: list[str]) -> None:
    import rlvr

    rows = [{"question": f"What is {a} plus 1?", "answer": str(a + 1)} for a in range(40)]
    checks = rlvr.doctor(words[1], data=rows, prompt="plain", reward="numeric", rollout={"max_completion_tokens": 16})
    assert [check.name for check in checks if check.status == "fail"] == []
    assert len(checks) == len(CHECKS)

"""The files of `examples/own` as their docstrings say, from an empty folder, with the wheel that users install."""

import ast
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.system.harness import (
    DATA,
    ENVIRONMENT,
    Command,
    Finished,
    check_equal,
    metrics,
    num_lines,
    once,
    outcome,
    split,
    wait_until,
)
from tests.system.served import check_installed
from tests.variants import variants

ROOT = Path(__file__).parents[2]
OWN = ROOT / "examples" / "own"
FILES = sorted(OWN.glob("*.py"))

SHORT = split("""
    trainer.max_steps=2 trainer.warmup_steps=0 trainer.checkpoint_every=1 evaluation.every=1 evaluation.num_examples=4
    tracker.rollouts_every=1 tracker.console=none run_dir=run
""")
TINY = split("""
    rollout.prompts_per_step=4 model.hidden_size=32 model.num_layers=1 model.num_heads=2 model.intermediate_size=32
    warm_start.num_steps=30 warm_start.batch_size=16 warm_start.warmup_steps=0 warm_start.final_phase_steps=0
""")
MORE = {  # what makes the command of a docstring short
    "my_shop": (*TINY, "rollout.group_size=4", "rollout.max_completion_tokens=32"),
    "my_algorithm": TINY,
    "my_engine": TINY,
    "my_model": (*(word for word in TINY if not word.startswith("model.")), "model.width=32", "model.num_layers=1"),
    "my_distillation": (*TINY, "algorithm.teacher=start"),
    "my_reward": TINY,
    "my_tracker": TINY,
    "my_sampler": (*TINY, "sampler.rise_at=0"),  # every step opens a level
    "my_retriever": (
        f"task.train_sets='{DATA / 'musique'},train'",
        f"task.eval_sets='{DATA / 'musique'},dev'",
        "prompt.system='Answer with tools.'",
        *split("rollout.prompts_per_step=2 rollout.group_size=4 rollout.max_completion_tokens=32"),
        *split("task.max_turns=3 model.lora.enabled=false"),
    ),
}
MEASURED = {
    "my_shop": "eval/shop/accuracy",
    "my_algorithm": "loss/policy",
    "my_engine": "policy/mismatch_kl",
    "my_model": "reward/boxed",
    "my_distillation": "policy/teacher_kl",
    "my_reward": "reward/brief",
    "my_tracker": "reward/mean",
    "my_sampler": "rollout/episodes",
    "my_retriever": "eval/musique/paragraphs_recall",
}


def commands(module: str) -> list[list[str]]:
    """The words of the indented commands in a file's docstring."""
    text = (ast.get_docstring(ast.parse((OWN / f"{module}.py").read_text())) or "").replace("\\\n", "")
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("    rlvr ")]


def training(module: str, *more: str) -> list[str]:
    """The first training of a docstring, short; what is said twice is said last."""
    return once(*next(words for words in commands(module) if words[0] == "train"), *SHORT, *MORE[module], *more)


# ----------------------------------------------------------------------------------------------------- the installed


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has nothing but the wheel of the package, installed."""
    packages = tmp_path_factory.mktemp("packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", packages, wheel], check=True)
    return packages


RUN = """
import contextlib, io, json, sys
import rlvr
from rlvr.cli.main import main
assert rlvr.__file__.startswith(sys.argv[1]), "not the wheel"
for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    print(json.dumps({"code": code, "out": out.getvalue(), "err": err.getvalue()}), file=sys.__stdout__)
"""


def run(installed: Path, folder: Path, *lines: Sequence[str]) -> list[Finished]:
    """The commands, one after another in one process of the installed package: the imports take seconds."""
    command = [sys.executable, "-c", RUN, str(installed)]
    streams: dict[str, Any] = {"input": json.dumps(lines), "capture_output": True, "text": True}
    done = subprocess.run(command, cwd=folder, env=environment(installed), check=False, **streams)
    assert done.returncode == 0, done.stderr
    return [Finished(**json.loads(line)) for line in done.stdout.splitlines()]


def environment(installed: Path) -> dict[str, str]:
    return os.environ | ENVIRONMENT | {"PYTHONPATH": str(installed)}


def copied(folder: Path, *modules: str) -> None:
    for module in modules:
        shutil.copy(OWN / f"{module}.py", folder)


def well(finished: Sequence[Finished]) -> None:
    for each in finished:
        assert each.code == 0, each.err


# --------------------------------------------------------------------------------------------------------- the files


def test_each_file_is_short_and_says_how_it_is_started() -> None:
    names = "my_algorithm my_distillation my_engine my_model my_retriever my_reward my_sampler my_settings my_shop"
    assert [file.stem for file in FILES] == [*names.split(), "my_tracker"]
    longer = {"my_engine": 130, "my_model": 80}  # a whole service, and an architecture
    for file in FILES:
        assert len(file.read_text().splitlines()) <= longer.get(file.stem, 60), file
        assert commands(file.stem), file


@pytest.mark.long
def test_runs_that_are_resumed_equal_the_uninterrupted_ones(installed: Path, tool_qwen: Path, tmp_path: Path) -> None:
    """The run of each file."""
    copied(tmp_path, *MORE)
    lines: list[Sequence[str]] = []
    for module in MORE:
        model = [f"model.name_or_path={tool_qwen}"] if module == "my_retriever" else []
        whole, cut = (
            training(module, *model, f"run_dir={module}-whole"),
            training(module, *model, f"run_dir={module}-run"),
        )
        resume = ["train", f"run_dir={module}-run", "resume=true", "trainer.max_steps=2"]
        lines += [
            whole,
            once(*cut, "trainer.max_steps=1"),
            resume,
            ["eval", f"{module}-run", "--num-examples", "2", "--json"],
        ]
    *done, listed = run(installed, tmp_path, *lines, ["runs", ".", "--json"])
    well([*done, listed])
    found = [json.loads(line) for line in listed.out.splitlines()]
    assert [row["name"] for row in found if row["score"] is None] == []
    assert len(found) == 2 * len(MORE)
    for place, (module, measured) in enumerate(MEASURED.items()):
        folder = tmp_path / f"{module}-run"
        assert any(measured in row for row in metrics(folder)), module
        check_equal(outcome(tmp_path / f"{module}-whole"), outcome(folder))
        scores = json.loads(done[4 * place + 3].out.splitlines()[-1])
        assert any(name.endswith("/accuracy") for name in scores), module
    steps = [line.split(",")[0] for line in (tmp_path / "my_tracker-run" / "all.csv").read_text().splitlines()]
    assert list(dict.fromkeys(steps)) == ["step", "0", "1", "2"]
    assert sorted(steps[1:]) == steps[1:]
    (tmp_path / "my_shop-run").rename(tmp_path / "run")
    check_installed([sys.executable, "-m", "rlvr"], tmp_path, environment(installed), "Customer 1 buys one fig.")


@pytest.mark.parametrize("module", variants(["my_model", "my_engine"], always=1))
def test_a_killed_run_of_an_own_model_or_engine_goes_on_exactly(module: str, tmp_path: Path) -> None:
    copied(tmp_path, module)
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def started(*words: str) -> Command:
        return Command(*words, log=tmp_path / "log", cwd=tmp_path)

    def succeeds(*words: str) -> None:
        command = started(*words)
        assert command.wait(110.0) == 0, command.err

    short = (module, "trainer.max_steps=3")
    succeeds(*training(*short, f"run_dir={whole}"))
    command = started(*training(*short, f"run_dir={killed}"))
    wait_until(lambda: num_lines(killed) > 1)
    command.send(signal.SIGKILL)
    assert command.wait() == -signal.SIGKILL
    assert not (killed / "final").exists()
    succeeds("train", f"run_dir={killed}", "resume=true")
    succeeds("eval", str(killed), "--num-examples", "2")
    check_equal(outcome(killed), outcome(whole))


# ------------------------------------------------------------------------------------------------------ what is wrong

BROKEN = {
    "missing.py": "import there_is_no_such_module\n",
    "unfinished.py": """
from rlvr.algorithms import Algorithm
from rlvr.engines.settings import EngineSettings
from rlvr.models.settings import Model
from rlvr.retrieval.retriever import Retriever
from rlvr.rewards.base import Part
from rlvr.samplers.base import PromptSampler
from rlvr.tasks.generator import ExamplesTask
from rlvr.tracking.trackers.base import Tracker

class A(Algorithm): ...
class P(Part): ...
class R(Retriever): ...
class E(ExamplesTask): ...
class S(PromptSampler): ...
class G(EngineSettings): ...
class M(Model): ...

class Fails(Model):
    def open(self, context):
        return {}[context.seed]

class Forgets(Model):
    def open(self, context): ...
class T(Tracker): ...

class Unfit(Part):
    def grade(self):
        return 1.0

class Deaf(A):
    def advantages(self, batch): ...
    def surrogate(self, log_ratio, logprobs, advantages, mask): ...

class Undocumented(ExamplesTask):
    def examples(self):
        return [("?", "!")] * 20
    def tools(self):
        return (lambda item: item,)

class Compares(A):
    compares_groups = True
    def advantages(self, batch, penalties, mask): ...
    def surrogate(self, log_ratio, logprobs, advantages, mask): ...
""",
}
TRIGRAMS = "--config-name musique task.retriever=my_retriever:Trigrams"
WRONG = [
    line.replace("TRIGRAMS", TRIGRAMS).split(" -> ")
    for line in """
task=my_shop:Shop model=scratch_bpe task.max_prise=3 -> task.max_prise; did you mean task.max_price?
task=my_shop:Shop model=scratch_bpe task.max_price=0 -> task.max_price=0: must be greater than or equal to 1
task=my_shop:Shop model=scratch -> model=scratch has a tokenizer of the task's words, and this task has none
task=my_shop:Shp -> task=my_shop:Shp: module my_shop has no TaskSettings Shp; did you mean Shop?
task=my_shop:price -> module my_shop has price, which is no TaskSettings; there are Shop.
task=my_shp:Shop -> module my_shp cannot be imported (ModuleNotFoundError: No module named 'my_shp'); correct it,
task=missing:Shop -> module missing cannot be imported (ModuleNotFoundError: No module named 'there_is_no_such_module'
task=unfinished:E -> has no method examples
task=unfinished:Undocumented model=scratch_bpe -> task=unfinished:Undocumented: the tool
algorithm=my_algorithm:Renforce -> did you mean Reinforce?
algorithm=my_algorithm:Reinforce algorithm.base=1 -> algorithm.base; did you mean algorithm.baseline?
algorithm=my_algorithm:Reinforce algorithm.baseline=3 -> algorithm.baseline=3: must be true or false
algorithm=my_algorithm:Reinforce algorithm.num_epochs=2 -> makes one update per batch
algorithm=unfinished:A -> has no method advantages
algorithm=unfinished:Deaf -> its method advantages must take (self, batch, penalties, mask); correct its parameters
reward.parts.brief.type=unfinished:Unfit -> its method grade must take (self, attempt); correct its parameters
algorithm=unfinished:Compares rollout.group_size=1 -> algorithm=unfinished:Compares compares the completions
reward.parts.brief.type=my_reward:Breif -> did you mean Brief?
reward.parts.brief.type=my_reward:Brief reward.parts.brief.free_token=3 -> did you mean reward.parts.brief.free_tok
reward.parts.brief.type=unfinished:P -> has no method grade
sampler=my_sampler:Stair -> did you mean Stairs?
sampler=my_sampler:Stairs sampler.rise=1 -> sampler.rise; did you mean sampler.rise_at?
sampler=my_sampler:Stairs sampler.part=brief -> sampler.part=brief: the reward has no such part; there are
sampler=unfinished:S -> has no method take
sampler=my_reward:Brief -> module my_reward has Brief, which is no PromptSampler
engine=my_engine:Elsewher -> did you mean Elsewhere?
engine=my_engine:Elsewhere engine.num_thread=2 -> engine.num_thread; did you mean engine.num_threads?
engine=my_engine:Asking -> module my_engine has Asking, which is no EngineSettings; there are Elsewhere.
engine=my_engine:Elsewhere model=hf model.name_or_path=x model.lora.enabled=true -> samples from whole models
engine=unfinished:G -> has no method open, which every EngineSettings needs
model=my_model:Square -> did you mean Squared?
model=my_model:Squared model.width=12 -> model.width=12: must be a multiple of 8
model=unfinished:M -> has no method open, which every Model needs
model=unfinished:Fails tracker.console=none -> model=unfinished:Fails: open raised KeyError: 0 (unfinished.py, line
model=unfinished:Forgets tracker.console=none -> it must return a HubPolicy (rlvr.models.policy), not NoneType
tracker.report_to=[my_tracker:Cvs] -> did you mean Csv?
tracker.report_to=[my_tracker:Csv] tracker.csv.pth=a -> tracker.csv.pth; did you mean tracker.csv.path?
tracker.report_to=[unfinished:T] -> has no method log
--config-name musique task.retriever=my_retriever:Trigrms -> did you mean Trigrams?
TRIGRAMS task.retrieval.own.widt=4 -> task.retrieval.own.widt=4: there is no such key; did you mean width?
TRIGRAMS task.retrieval.own.width=0 -> task.retrieval.own.width=0: must be greater
--config-name musique task.retriever=unfinished:R -> has no method search
""".strip().splitlines()
]  # fmt: skip


HELP = {
    "task=my_shop:Shop": "task.max_price   int >= 1   default: 9",
    "algorithm=my_algorithm:Reinforce": "algorithm.baseline   true or false   default: true",
    "reward.parts=my_reward:Brief": "reward.parts.<name>.free_tokens   int >= 1   default: 6",
    "sampler=my_sampler:Stairs": "sampler.rise_at   number >= 0, <= 1   default: 0.8",
    "engine=my_engine:Elsewhere": "engine.num_threads   int >= 1   default: 1",
    "model=my_model:Squared": "model.num_layers   int >= 1   default: 3",
    "tracker.report_to=[my_tracker:Csv]": "tracker.csv.path   text not empty   default: numbers.csv",
    "task.retriever=my_retriever:Trigrams": "task.retrieval.own.width   int >= 1   default: 3",
}


def test_commands_help_and_what_is_wrong(installed: Path, tmp_path: Path) -> None:
    copied(tmp_path, *MORE)
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    search = [
        str(DATA / "musique" / "corpus.jsonl") if word == "CORPUS" else word for word in commands("my_retriever")[0]
    ]
    compose = [[*words, "--cfg", "job"] for name in MORE for words in commands(name) if words[0] == "train"]
    wrong = [["train", *shlex.split(line)] for line, _ in WRONG]
    done = iter(run(installed, tmp_path, search, *compose, *(["train", "--help-config", key] for key in HELP), *wrong))
    found = next(done)
    well([found])
    assert "passages searched" in found.err
    assert len(found.out.splitlines()) > 2
    assert [next(done).out.count("my_") for _ in compose] == [1] * len(compose)  # each names the component once
    assert [line for line in HELP.values() if line not in next(done).out] == []
    for (line, sentence), found in zip(WRONG, done, strict=True):
        assert found.code == 2, (line, found.err)
        assert sentence in found.err, line
        assert found.err.startswith("rlvr: error: "), line
        assert found.err.count("\n") == 1, (line, found.err)
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
def test_an_installed_package_gives_short_names(installed: Path, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    shutil.copytree(installed, packages)
    copied(packages, *MORE)
    (packages / "shelf-1.0.dist-info").mkdir()
    (packages / "shelf-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (packages / "shelf-1.0.dist-info" / "entry_points.txt").write_text(
        "[rlvr.components]\ntask.shop = my_shop:Shop\nalgorithm.reinforce = my_algorithm:Reinforce\n"
        "reward.brief = my_reward:Brief\ntask.broken = gone:Shop\n"
        "tracker.csv = my_tracker:Csv\nsampler.stairs = my_sampler:Stairs\nretriever.trigrams = my_retriever:Trigrams\n"
    )
    names = ("task=shop", "algorithm=reinforce", "reward.parts.brief.type=brief", "tracker.report_to=[csv]")
    words = [word for word in training("my_shop", *names) if not word.startswith("task=my_shop")]
    misspelt, unclear, broken = ["train", "task=shopp"], ["train", "sampler=stair"], ["train", "task=broken"]
    search = ["retrieve", str(DATA / "musique" / "corpus.jsonl"), "--retriever", "trigrams", "--query", "Lyon"]
    trained, evaluated, refused, unknown, unloaded, found = run(
        packages, tmp_path, words, ["eval", "run", "--num-examples", "2"], misspelt, unclear, broken, search
    )
    well([trained, evaluated, found])
    assert "reward/brief" in metrics(tmp_path / "run")[-1]
    assert (tmp_path / "run" / "numbers.csv").is_file()
    assert "shop, 2 held-out examples" in evaluated.out
    assert (refused.code, "did you mean shop?" in refused.err) == (2, True)
    assert (unknown.code, "did you mean stairs?" in unknown.err) == (2, True)
    assert (unloaded.code, "task=broken: module gone cannot be imported" in unloaded.err) == (2, True), unloaded.err

"""Real runs of the product, small enough for a test."""

import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.main import main
from rlvr.commands.train.body import TrainResult, train
from rlvr.config.compose import load_config
from rlvr.quiet import hide_library_warnings
from tests.ranks import forkserver


def split(text: str) -> tuple[str, ...]:
    """Words of a command line: `split("seed=1 trainer.max_steps=2")`."""
    return tuple(text.split())


TASK = split("""
    task.operators=['+'] task.modulus=5 task.operand_range=[0,4] task.complexity_range=[1,2]
    task.complexity_weights=null task.eval_complexity_weights=null
""")
"""Sums of two or three digits modulo 5."""

LENGTH = split("""
    rollout.prompts_per_step=4 rollout.group_size=4 rollout.max_completion_tokens=16
    trainer.max_steps=2 trainer.warmup_steps=0 trainer.checkpoint_every=null
    evaluation.every=100 evaluation.num_examples=16 tracker.console=none tracker.rollouts_every=1
""")
"""Two steps of 16 episodes: a fifth of a second."""

ADAMW = split("""
    warm_start.optimizer=adamw warm_start.learning_rate=3e-3 warm_start.final_learning_rate_share=0.05
    warm_start.weight_decay=0.01 warm_start.final_worked_share=0.15
""")
"""Learns less in a step than `rpn` does with Muon, which leaves something to RL after few steps."""

SCRATCH = ADAMW + split("""
    model.hidden_size=32 model.num_layers=2 model.num_heads=2 model.intermediate_size=64 model.max_context_tokens=40
    warm_start.num_steps=80 warm_start.batch_size=32 warm_start.warmup_steps=5 warm_start.final_phase_steps=15
""")
"""20k parameters after 80 batches: they box most answers, and a quarter of them is right."""

SMALL = TASK + LENGTH
"""To be used with a warm-started model: `SMALL + pretrained(folder)`."""

DATA = Path(__file__).resolve().parents[1] / "fixtures"
"""Rows in the schemas of GSM8K and FinQA, as RLVR_DATA has the real ones."""

ON_DATA = split("""
    rollout.prompts_per_step=2 rollout.group_size=4 rollout.max_completion_tokens=24
    trainer.max_steps=1 trainer.warmup_steps=0 trainer.learning_rate=1e-3 trainer.checkpoint_every=null
    evaluation.every=100 evaluation.num_examples=4 tracker.console=none tracker.rollouts_every=1
""")
"""A step of 8 episodes with a small checkpoint: half a second. On top of `--config-name gsm8k`."""


def pretrained(folder: Path | str) -> tuple[str, ...]:
    """Start from the model in a folder."""
    return ("model=hf", f"model.name_or_path={folder}")


def once(*words: str) -> list[str]:
    """Words of a command in which the last of several values of a key is left."""
    last = {word.partition("=")[0]: place for place, word in enumerate(words)}
    return [word for place, word in enumerate(words) if "=" not in word or last[word.partition("=")[0]] == place]


# ------------------------------------------------------------------------------------------- in this process


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run that has ended."""

    folder: Path
    result: TrainResult

    @property
    def rows(self) -> list[dict[str, float]]:
        return metrics(self.folder)

    @property
    def numbers(self) -> list[dict[str, float]]:
        return numbers(self.folder)


def run_train(folder: Path, *overrides: str, name: str = "rpn", stopped: Callable[[], bool] = lambda: False) -> Ran:
    """`rlvr train run_dir=FOLDER ...` in this process, without the command line; later values replace earlier ones."""
    config = load_config(once(*overrides, f"run_dir={folder}"), config_name=name)
    return Ran(folder=folder, result=train(config, stopped))


def metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def numbers(folder: Path) -> list[dict[str, float]]:
    """The same without what depends on the clock or the machine."""
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "system/"))} for row in metrics(folder)]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Everything of a finished run that must not depend on how often it was interrupted."""

    numbers: list[dict[str, float]]
    rollouts: dict[str, bytes]
    final: bytes


def outcome(folder: Path) -> Outcome:
    """Metrics, rollout files and final weights."""
    return Outcome(
        numbers=numbers(folder),
        rollouts={path.name: path.read_bytes() for path in sorted((folder / "rollouts").iterdir())},
        final=(folder / "final" / "model.safetensors").read_bytes(),
    )


def check_equal(left: Outcome, right: Outcome) -> None:
    """Bit for bit, with the first difference in the message."""
    for a, b in zip(left.numbers, right.numbers, strict=True):
        different = {key: (a.get(key), b.get(key)) for key in a | b if a.get(key) != b.get(key)}
        assert not different, f"step {a['step']}: {different}"
    assert list(left.rollouts) == list(right.rollouts)
    for name, data in left.rollouts.items():
        assert data == right.rollouts[name], name
    assert left.final == right.final


# ------------------------------------------------------------------------------------------------------ commands


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, kw_only=True)
class Cli:
    """Commands in this process, without the seconds of their imports: `cli("eval", run, "--json")`."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: object) -> Finished:
        self.capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = self.capsys.readouterr()
        return Finished(code=code, out=out, err=err)

    def ok(self, *words: object) -> Finished:
        """A command that must succeed."""
        done = self(*words)
        assert done.code == 0, done.err
        return done

    def refuses(self, code: int, words: Sequence[object], *parts: str) -> str:
        """A command that must fail, with one line on stderr that holds all the parts."""
        done = self(*words)
        assert (done.code, done.out) == (code, ""), done.err
        assert done.err.startswith("rlvr: error: "), done.err
        assert done.err.count("\n") == 1, done.err
        assert [part for part in parts if part not in done.err] == [], done.err
        return done.err


ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def python_rlvr(
    *words: str, cwd: Path, environment: Mapping[str, str] | None = None, timeout_s: float = 300.0
) -> Finished:
    """`python -m rlvr WORDS` as a user starts it. The imports take seconds: see `rlvr`."""
    command = [sys.executable, "-m", "rlvr", *once(*words)]
    variables = os.environ | ENVIRONMENT | (environment or {})
    done = subprocess.run(
        command, cwd=cwd, env=variables, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    return Finished(code=done.returncode, out=done.stdout, err=done.stderr)


def rlvr(*words: str, cwd: Path, environment: Mapping[str, str] | None = None, **options: Any) -> Finished:
    """`rlvr WORDS` in a process of its own, in that folder, with our warnings as errors; options as of `Command`."""
    options["environment"] = ENVIRONMENT | dict(environment or {})
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "out"), Path(folder, "err")
        code = Command(*words, log=log, out=out, cwd=cwd, **options).wait(300.0)
        return Finished(code=code, out=out.read_text(), err=log.read_text())


class Command:
    """A command in a process of its own, forked from one that has made the imports; stderr goes to `log`.

    `out` is a file for stdout, which otherwise goes to `log`. `die_at=n` kills the process with SIGKILL at its n-th
    write operation (a file opened for writing, renamed, removed). `max_file_bytes` is a limit on the size of files.
    `script` is a Python program that runs in place of a command, `prepare` is called before either.
    """

    def __init__(self, *words: str, log: Path, **options: Any) -> None:
        self._log = log
        start = Start(words=tuple(once(*words)), log=log, **options)
        self.process: BaseProcess = forkserver().Process(target=_child, args=(start, dict(os.environ)))
        self.process.start()

    @property
    def err(self) -> str:
        """What it has written to stderr so far."""
        return self._log.read_text() if self._log.exists() else ""

    def wait(self, timeout_s: float = 60.0) -> int:
        """The exit status, negative for a signal."""
        self.process.join(timeout_s)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"still running: {self.err}")
        return self.process.exitcode

    def send(self, number: int) -> None:
        """A signal, if it still runs."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, number)


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a child is told; see `Command`."""

    words: tuple[str, ...]
    log: Path
    out: Path | None = None
    cwd: Path | None = None
    environment: Mapping[str, str] | None = None
    die_at: int | None = None
    max_file_bytes: int | None = None
    script: Path | None = None
    prepare: Callable[[], object] | None = None


def _child(start: Start, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment | dict(start.environment or {}))
    with start.log.open("w") as log, (start.out or start.log).open("a") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(log.fileno(), 2)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if the tests run under nohup
    hide_library_warnings()
    warnings.filterwarnings("error", module="rlvr")
    warnings.filterwarnings("error", category=ResourceWarning)
    if start.cwd is not None:
        os.chdir(start.cwd)
        sys.path.insert(0, str(start.cwd))
    if start.max_file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (start.max_file_bytes,) * 2)
    if start.die_at is not None:
        sys.addaudithook(_assassin(start.die_at))
    if start.prepare is not None:
        start.prepare()
    code = 0
    if start.script is None:
        code = main(start.words)
    else:
        runpy.run_path(str(start.script), run_name="__main__")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the server's children must not run its exit handlers


def _assassin(die_at: int) -> Callable[[str, tuple[object, ...]], None]:
    """An audit hook that kills the process at the n-th operation that changes the file system."""
    count = 0

    def hook(event: str, args: tuple[object, ...]) -> None:
        nonlocal count
        writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
        if writes or event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
            count += 1
            if count == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Poll; TimeoutError if it never comes true."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the condition never came true")
        time.sleep(0.002)


def num_lines(folder: Path) -> int:
    """Complete lines of metrics.jsonl so far."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0

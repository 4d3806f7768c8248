"""MLflow, Weights & Biases and TensorBoard after real runs, read back from what they keep."""

import importlib.util
import json
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.harness import SMALL, Cli, Command, Finished, Ran, metrics, once, pretrained, run_train, wait_until
from tests.system.hold import FIRST_HELD
from tests.system.tracker_readers import Kept, Numbers, from_mlflow, from_tensorboard, from_wandb

pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]  # the libraries' warnings

ALL = ("tracker.report_to=[mlflow,wandb,tensorboard]", "tracker.wandb.mode=offline")
TENSORBOARD = "tracker.report_to=tensorboard"
NAMES = ("mlflow", "wandb", "tensorboard")


def in_file(folder: Path) -> Numbers:
    """What metrics.jsonl says."""
    rows = metrics(folder)
    return {int(row["step"]): {k: v for k, v in row.items() if k != "step" and v is not None} for row in rows}


def single(values: Numbers) -> Numbers:
    """As float32, which TensorBoard keeps."""
    return {
        step: {name: struct.unpack("f", struct.pack("f", value))[0] for name, value in row.items()}
        for step, row in values.items()
    }


def without_clock(values: Numbers) -> Numbers:
    timed = ("time/", "system/")
    return {step: {k: v for k, v in row.items() if not k.startswith(timed)} for step, row in values.items()}


def mlflow_run(folder: Path, experiment: str = "rpn") -> Kept:
    """The only run of the store beside a run folder."""
    (kept,) = from_mlflow(f"sqlite:///{folder.parent / 'mlflow.db'}", experiment).values()
    return kept


def tensorboard_run(folder: Path) -> Kept:
    return from_tensorboard(folder / "tensorboard")


# --------------------------------------------------------------------------------------------------- all three at once


@pytest.fixture(scope="module")
def kept(tracked: tuple[Path, Finished]) -> dict[str, Kept]:
    folder, _ = tracked
    (offline,) = from_wandb(folder)
    mlflow = mlflow_run(folder, "rpn_test")
    return {"mlflow": mlflow, "wandb": offline, "tensorboard": tensorboard_run(folder)}


def test_pitfall_38_every_number_of_the_file_is_in_every_tracker(
    tracked: tuple[Path, Finished], kept: dict[str, Kept]
) -> None:
    expected = in_file(tracked[0])
    assert sorted(expected) == [0, 1, 2, 3]
    assert kept["mlflow"].numbers == expected
    assert kept["wandb"].numbers == expected
    assert kept["tensorboard"].numbers == single(expected)
    assert [one.doubled for one in kept.values()] == [[], [], []]


def test_stdout_has_the_result_and_stderr_where_to_look(tracked: tuple[Path, Finished]) -> None:
    folder, done = tracked
    assert [line.split(":")[0] for line in done.out.splitlines()] == ["rpn", "model", "curve", "try it"]
    said = [line for line in done.err.splitlines() if line.startswith(("MLflow", "Weights", "TensorBoard"))]
    assert sorted(line.split(":")[0] for line in said) == ["MLflow", "TensorBoard", "Weights & Biases"]
    assert "warning" not in done.err
    assert f"mlflow ui --backend-store-uri sqlite:///{folder.parent}/mlflow.db" in done.err
    assert re.search(rf"wandb sync {folder}/wandb/offline-run-\S+\n", done.err)
    assert {path.name for path in folder.parent.iterdir()} == {"mine", "mlflow.db", "mlflow_artifacts"}


def test_name_tags_group_and_configuration_are_there(tracked: tuple[Path, Finished], kept: dict[str, Kept]) -> None:
    config = yaml.safe_load((tracked[0] / "config.yaml").read_text())
    assert {name: (one.name, one.group) for name, one in kept.items()} == dict.fromkeys(NAMES, ("mine", "ours"))
    assert kept["mlflow"].tags["paper"] == "true"
    assert kept["mlflow"].tags["team"] == "nlp"
    assert kept["mlflow"].tags["rlvr.run_dir"] == str(tracked[0])
    assert set(kept["wandb"].tags) == set(kept["tensorboard"].tags) == {"paper", "team:nlp"}
    assert kept["tensorboard"].config == config
    assert {name: value for name, value in kept["wandb"].config.items() if name != "_wandb"} == config
    parameters = kept["mlflow"].config
    assert parameters["trainer.learning_rate"] == "0.0005"
    assert parameters["task.operators"] == '["+"]'
    assert parameters["tracker.mlflow.tracking_uri"] == "null"
    assert len(parameters) > 80


def test_files_and_the_model_are_kept(tracked: tuple[Path, Finished], kept: dict[str, Kept]) -> None:
    folder, _ = tracked
    files = {path.name for path in folder.iterdir()} & {"config.yaml", "metrics.jsonl", "report.html"}
    final = {f"final/{path.name}" for path in (folder / "final").iterdir()}
    tables = {"completions/step_000001.json", "completions/step_000002.json"}
    assert set(kept["mlflow"].files) == files | final | tables
    assert {name for name in kept["wandb"].files if "table" not in name} == files  # log_model is off there
    model = next(folder.parent.glob("mlflow_artifacts/*/artifacts/final/model.safetensors"))
    assert model.read_bytes() == (folder / "final" / "model.safetensors").read_bytes()


def test_completions_of_the_recorded_steps_are_shown(kept: dict[str, Kept]) -> None:
    tables = kept["mlflow"].completions
    assert kept["wandb"].completions == tables
    assert {step: len(rows) for step, rows in tables.items()} == {1: 8, 2: 8}  # tracker.max_completions
    texts = kept["tensorboard"].completions
    for step, rows in tables.items():
        assert {row[0] for row in rows} == {step}
        for row, text in zip(rows, texts[step], strict=True):
            prompt, completion, answer, reward = row[4], row[5], row[6], row[7]
            assert isinstance(reward, float)
            assert f"answer={answer}  reward={reward}" in text
            assert prompt in text
            assert completion in text
            assert all(line.startswith("    ") for line in text.split("\n"))  # a block: never read as Markdown


def test_the_end_is_told(kept: dict[str, Kept]) -> None:
    assert [kept[name].status for name in NAMES] == ["FINISHED", 0, "finished"]


# ------------------------------------------------------------------------------------------------------------- resume


def test_pitfall_37_a_stopped_run_resumes_its_tracker_runs(model: Path, beside_store: Path) -> None:
    words = (*SMALL, *pretrained(model), *ALL, "trainer.max_steps=4", "tracker.mlflow.log_model=false")
    folder = beside_store / "run"
    run_train(folder, *words, stopped=lambda: len(metrics(folder)) == 3)
    stopped = [mlflow_run(folder).status, from_wandb(folder)[0].status, tensorboard_run(folder).status]
    assert stopped == ["KILLED", 130, "killed"]
    first = json.loads((folder / "trackers" / "wandb.json").read_text())["id"]
    end = int(time.time())
    wait_until(lambda: int(time.time()) > end)  # W&B names the folder of a part by the second of its start
    run_train(folder, *words, "resume=true")
    expected = in_file(folder)
    assert sorted(expected) == [0, 1, 2, 3, 4]
    one, parts, events = mlflow_run(folder), from_wandb(folder), tensorboard_run(folder)
    assert one.numbers == expected
    assert [sorted(part.numbers) for part in parts] == [[0, 1, 2], [3, 4]]
    assert parts[0].numbers | parts[1].numbers == expected
    assert {path.stem.removeprefix("run-") for path in folder.glob("wandb/offline-run-*/*.wandb")} == {first}
    assert events.numbers == single(expected)
    assert one.doubled == events.doubled == []
    assert [one.status, parts[1].status, events.status] == ["FINISHED", 0, "finished"]


def test_pitfall_37_steps_after_a_kill_are_not_doubled(model: Path, beside_store: Path) -> None:
    """Step 6 is held until the trackers have all before it, so that nothing is under way at the kill."""
    folder, hold, last = beside_store / "run", beside_store / "hold", FIRST_HELD + 2
    words = (*SMALL, *pretrained(model), *ALL, f"trainer.max_steps={last}", "trainer.checkpoint_every=3")
    words += ("reward.parts.hold.type=tests.system.hold:Hold", f"reward.parts.hold.run={folder}")
    hold.touch()
    command = Command("train", *words, "trainer.max_steps=9999", f"run_dir={folder}", log=beside_store / "log")
    states = [folder / "trackers" / f"{name}.json" for name in NAMES]

    def are_sent() -> bool:
        return all(path.exists() and json.loads(path.read_text())["last_step"] == FIRST_HELD - 1 for path in states)

    def is_written() -> bool:
        """W&B's service writes once a second, and keeps the last step open."""
        return any(FIRST_HELD - 2 in part.numbers for part in from_wandb(folder))

    wait_until(lambda: are_sent() and is_written(), timeout_s=300)
    command.send(signal.SIGKILL)
    command.wait()
    assert metrics(folder)[-1]["step"] == FIRST_HELD - 1
    hold.unlink()
    run_train(folder, *words, "resume=true")  # from the checkpoint of step 3: 4 and 5 are made again
    expected = in_file(folder)
    assert sorted(expected) == list(range(last + 1))
    one, parts, events = mlflow_run(folder), from_wandb(folder), tensorboard_run(folder)
    assert without_clock(one.numbers) == without_clock(expected)
    first, second = (without_clock(part.numbers) for part in parts)
    assert sorted(second) == list(range(FIRST_HELD, last + 1))
    open_step = {} if FIRST_HELD - 1 in first else {FIRST_HELD - 1: without_clock(expected)[FIRST_HELD - 1]}
    assert first | open_step | second == without_clock(expected)
    assert events.numbers == single(expected)  # the file of the first part is cut off: those of the clock agree, too
    assert [kept.doubled for kept in (one, *parts, events)] == [[]] * 4
    assert [one.status, parts[1].status, events.status] == ["FINISHED", 0, "finished"]


def test_a_tracker_added_to_a_finished_run_gets_all_of_it(model: Path, tmp_path: Path) -> None:
    words = (*SMALL, *pretrained(model), "trainer.max_steps=3")
    folder = run_train(tmp_path / "run", *words).folder
    run_train(folder, *words, "resume=true", TENSORBOARD)
    assert tensorboard_run(folder).numbers == single(in_file(folder))


def test_an_error_of_the_run_marks_it_as_failed(model: Path, tmp_path: Path) -> None:
    words = (*SMALL, *pretrained(model), TENSORBOARD, "trainer.learning_rate=1e30", "trainer.max_steps=9")
    with pytest.raises(Exception, match=r"not finite|NaN"):
        run_train(tmp_path / "run", *words)
    assert tensorboard_run(tmp_path / "run").status == "failed"


def test_the_runs_of_a_sweep_are_runs_of_one_group(model: Path, here: Path, cli: Cli) -> None:
    words = ("train", "-m", *SMALL, *pretrained(model), TENSORBOARD, "trainer.max_steps=1", "run_dir=sweep")
    cli.ok(*once(*words, "seed=0,1"))
    found = [tensorboard_run(here / "sweep" / f"seed-{seed}") for seed in (0, 1)]
    told = [(one.name, one.group, one.config["seed"]) for one in found]
    assert told == [("seed-0", "sweep", 0), ("seed-1", "sweep", 1)]


# ------------------------------------------------------------------------------------------------------- dead trackers


@contextmanager
def refusing() -> Iterator[int]:
    """A port where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@contextmanager
def hanging() -> Iterator[int]:
    """A server that takes connections and never says a word."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def accept() -> None:
            while True:
                try:
                    stack.enter_context(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


class Broken(BaseHTTPRequestHandler):
    """500 to everything."""

    def do_GET(self) -> None:
        self.send_response(500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def broken() -> Iterator[int]:
    """A server that answers every request with an error."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run without trackers."""
    return run_train(tmp_path_factory.mktemp("plain") / "run", *SMALL, *pretrained(model))


@pytest.fixture
def again(model: Path, tmp_path: Path) -> Callable[..., Ran]:
    """The same with more settings, on a plain console."""
    return partial(run_train, tmp_path / "run", *SMALL, *pretrained(model), "tracker.console=plain")


def the_warning(capfd: pytest.CaptureFixture[str]) -> str:
    """The only one that was printed, on stderr."""
    said = capfd.readouterr()
    assert said.out == ""
    (warning,) = [line for line in said.err.splitlines() if line.startswith("warning: ")]
    return warning


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
@pytest.mark.parametrize("server", [refusing, hanging, broken])
def test_pitfall_37_a_dead_server_costs_a_warning(
    name: str,
    server: Any,
    plain: Ran,
    again: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    with server() as port:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        begin = time.monotonic()
        ran = again("tracker.timeout_s=3", f"tracker.report_to={name}")
        assert time.monotonic() - begin < 100  # three seconds to give up, and on a busy machine a minute to load
    assert ran.numbers == plain.numbers
    assert (ran.folder / "final" / "model.safetensors").is_file()
    warning = the_warning(capfd)
    assert "is disabled (" in warning
    assert "metrics.jsonl has all numbers" in warning


def test_a_store_that_cannot_be_written_costs_a_warning(
    plain: Ran, again: Callable[..., Ran], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    ran = again(TENSORBOARD, f"tracker.tensorboard.folder={tmp_path / 'file'}")
    assert ran.numbers == plain.numbers
    assert "TensorBoard is disabled (" in the_warning(capfd)


def test_a_missing_library_is_refused_before_anything_is_done(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mlflow" else real(name, *rest)
    )
    words = ["train", *SMALL, *pretrained(model), "tracker.report_to=mlflow", f"run_dir={tmp_path / 'run'}"]
    for more in ((), ("-m", "seed=1,2")):
        done = cli(*words, *more)
        assert (done.code, "pip install -e '.[mlflow]'" in done.err) == (2, True)
    assert list(tmp_path.iterdir()) == []

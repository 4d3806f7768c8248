"""A tracker's own process: reads one JSON message a line from stdin, does it, answers with one line.

`python -m rlvr.tracking.trackers.worker NAME SETTINGS FOLDERS`, started by `pipe`: the component's name, its fields,
and where modules of the user's own are found, both as JSON. What the library prints goes to stderr, which is a file in
the run's folder. When the run's process dies, stdin ends: the tracker's run is then marked as failed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from rlvr import registry
from rlvr.settings import validated
from rlvr.tracking.trackers.base import RunFacts, Status, Tracker, without_password

POLL_S = 0.5
NICENESS = 5  # training goes first


@dataclass
class Ending:
    """How the run ended where no message says so: failed, or killed after SIGTERM."""

    status: Status = "failed"
    started: bool = False
    limit_s: float = 60.0


def main() -> int:
    """Serve one tracker until it is finished."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the library prints is no answer
    os.nice(NICENESS)
    ending = Ending()

    def asked_to_stop(*_: object) -> None:
        ending.status = "killed"

    signal.signal(signal.SIGTERM, asked_to_stop)
    threading.Thread(target=_end_with, args=(os.getppid(), ending), daemon=True).start()
    messages = iter(sys.stdin.readline, "")
    try:
        tracker = _tracker(*sys.argv[1:])
        tracker.load()
        _answer(answers, {})
        for line in messages:
            message = json.loads(line)
            _answer(answers, _handle(tracker, message, ending))
            if message["kind"] == "finish":
                return 0
    except Exception as error:  # of the library: any kind
        sys.stderr.write(without_password(traceback.format_exc()))
        _answer(answers, {"error": sentence(error)})
        return 1
    if ending.started:
        tracker.finish(ending.status)
    return 0


def _end_with(parent: int, ending: Ending) -> None:
    """When the run's process has died, end this one soon, even if the library hangs and never sees it."""
    while os.getppid() == parent:
        time.sleep(POLL_S)
    time.sleep(ending.limit_s)
    os.killpg(os.getpid(), signal.SIGKILL)  # of this session: with all that the library has started


def _tracker(name: str, settings: str, folders: str) -> Tracker:
    sys.path.extend(json.loads(folders))
    values = {key: value for key, value in json.loads(settings).items() if key != "name"}
    return validated(registry.find("tracker", name), values)


def _handle(tracker: Tracker, message: Mapping[str, Any], ending: Ending) -> dict[str, Any]:
    if message["kind"] == "start":
        facts = RunFacts.from_json(message["run"])
        ending.limit_s = facts.timeout_s
        started = tracker.start(facts)
        ending.started = True
        return asdict(started)
    calls: dict[str, Callable[[], None]] = {
        "prepare": lambda: tracker.prepare(RunFacts.from_json(message["run"])),
        "log": lambda: tracker.log(message["rows"]),
        "completions": lambda: tracker.completions(message["step"], message["rows"]),
        "files": lambda: tracker.files(message["paths"]),
        "model": lambda: tracker.model(message["folder"]),
        "finish": lambda: tracker.finish(message["status"]),
    }
    calls[message["kind"]]()
    return {}


def _answer(file: TextIO, answer: Mapping[str, Any]) -> None:
    with suppress(OSError):  # the run has died: stdin ends, too
        file.write(json.dumps(answer) + "\n")
        file.flush()


def sentence(error: BaseException, limit: int = 120) -> str:
    """`MlflowException: API request to http://... failed...: ConnectionRefusedError: ...`: the error and its root."""
    root = error
    while (inner := root.__cause__ or root.__context__) is not None:
        root = inner
    both = [without_password(f"{type(one).__name__}: {one}") for one in dict.fromkeys((error, root))]
    texts = [" ".join(text.split()).rstrip(". :") for text in both]
    return ": ".join(text if len(text) <= limit else f"{text[:limit]}..." for text in texts)


if __name__ == "__main__":
    # not `raise SystemExit`: threads that a library left behind must not keep the process
    code = main()
    sys.stderr.flush()
    os._exit(code)

"""The served report: what it sends, to whom, and when."""

import asyncio
import base64
import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.http_server import at
from rlvr.report import live as module
from rlvr.report.live import Live, make_app
from rlvr.report.page import PageLimits
from tests.unit.report.runs import save_run


async def get(app: Any, path: str, host: str = "127.0.0.1:8010") -> tuple[int, bytes]:
    """Status and body of a request."""
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope | {"headers": [(b"host", host.encode())], "scheme": "http", "server": ("x", 1)}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def unpacked(data: bytes) -> dict[str, Any]:
    return {name: json.loads(gzip.decompress(base64.b64decode(text))) for name, text in json.loads(data).items()}


def log(run: Path, step: int) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "reward/mean": 0.5}) + "\n")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_run(tmp_path / "run")
    return tmp_path / "run"


def test_the_page_and_its_data_are_as_the_files_are_now(run: Path) -> None:
    async def read() -> tuple[str, dict[str, Any], dict[str, Any]]:
        app = make_app(Live([run], PageLimits()), "127.0.0.1")
        _, page = await get(app, "/")
        before = unpacked((await get(app, "/data"))[1])
        log(run, 99)
        return page.decode(), before, unpacked((await get(app, "/data"))[1])

    page, before, after = asyncio.run(read())
    assert "connect-src 'self'" in page
    assert 'id="chunk-main"' in page
    assert before["main"]["live"] is True
    assert "index" in before
    assert 99 not in before["main"]["runs"][0]["steps"]
    assert after["main"]["runs"][0]["steps"][-1] == 99


def test_a_folder_of_runs_gets_new_ones(tmp_path: Path) -> None:
    async def names() -> list[list[str]]:
        live, found = Live([tmp_path], PageLimits()), []
        for name in ("a", "b"):
            save_run(tmp_path / name)
            found.append([one["name"] for one in (await live.page()).main["runs"]])
        return found

    assert asyncio.run(names()) == [["a"], ["a", "b"]]


def test_the_sweeps_of_a_folder_are_followed(tmp_path: Path) -> None:
    async def read() -> list[dict[str, Any]]:
        live, found = Live([tmp_path], PageLimits()), []
        for name in ("run", "sweep/seed-2", "sweep/seed-10"):
            save_run(tmp_path / name, metrics={3: {"eval/rpn/accuracy": 0.5}})
            found.append((await live.page()).main)
        return found

    pages = asyncio.run(read())
    assert [[run["name"] for run in page["runs"]] for page in pages] == [
        ["run"],
        ["run", "seed-2"],
        ["run", "seed-2", "seed-10"],
    ]
    assert [page["sweep"][1][-1] for page in pages] == ["0.500", "0.500, 0.500", "0.500, 0.500, 0.500"]


@pytest.mark.parametrize(("file", "state"), [("error.txt", "failed"), ("pruned.txt", "pruned")])
def test_the_end_of_a_run_is_a_change(file: str, state: str, run: Path) -> None:
    async def read() -> list[list[tuple[str, str]]]:
        live = Live([run], PageLimits())
        before = (await live.page()).main["facts"]
        (run / file).write_text("reward: it broke\n")
        return [before, (await live.page()).main["facts"]]

    (run / "metrics.jsonl").write_text('{"step": 2, "reward/mean": 0.5}\n')
    steps = [dict(facts)["step"] for facts in asyncio.run(read())]
    assert steps == ["2 of 3, not finished", f"2 of 3, {state}"]


def test_the_page_is_read_once_for_all_who_ask(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    real = module.run_page
    monkeypatch.setattr(module, "run_page", lambda *words, **more: reads.append(1) or real(*words, **more))

    async def ask() -> None:
        live = Live([run], PageLimits())
        await asyncio.gather(*(live.page() for _ in range(5)))

    asyncio.run(ask())
    assert len(reads) == 1


def test_an_event_comes_after_a_change_and_none_without_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    monkeypatch.setattr(module, "ALIVE_S", 0.05)

    async def listen() -> list[str]:
        live, seen = Live([run], PageLimits()), []
        async for line in live.changes():
            seen.append(line.strip())
            if len(seen) == 3:
                log(run, 99)
            if "data: changed" in seen:
                await live.drain(1.0)
        return seen

    seen = asyncio.run(asyncio.wait_for(listen(), 20))
    assert seen[:3] == [": the page is live", ":", ":"]
    assert seen.count("data: changed") == 1


def test_on_this_machine_it_answers_to_no_other_name(run: Path) -> None:
    async def ask(host: str, *names: str) -> list[int]:
        app = make_app(Live([run], PageLimits()), host)
        return [(await get(app, "/data", name))[0] for name in names]

    names = ("localhost:8010", "127.0.0.1", "evil.example:8010")
    assert asyncio.run(ask("127.0.0.1", *names)) == [200, 200, 400]
    assert asyncio.run(ask("0.0.0.0", *names)) == [200, 200, 200]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_it_answers_to_the_address_that_it_prints(host: str, run: Path) -> None:
    app = make_app(Live([run], PageLimits()), host)
    assert asyncio.run(get(app, "/data", f"{at(host)}:8010"))[0] == 200


def test_a_run_may_be_deleted_while_its_files_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any of the looks: the stream of events goes on."""
    real, live, is_deleted = Path.stat, Live([tmp_path], PageLimits()), list[bool]()
    for last in range(20):
        save_run(tmp_path / "run", tokenizer=False, rollouts={})
        looks = iter(range(20))

        def stat(path: Path, *words: Any, last: int = last, looks: Iterator[int] = looks, **more: Any) -> Any:
            found = real(path, *words, **more)
            if next(looks, None) == last:
                shutil.rmtree(tmp_path / "run")
            return found

        monkeypatch.setattr(Path, "stat", stat)
        live.stamp()
        monkeypatch.setattr(Path, "stat", real)
        is_deleted.append(not (tmp_path / "run").exists())
    assert is_deleted[:4] == [True] * 4
    assert not is_deleted[-1]  # after as many looks as there are

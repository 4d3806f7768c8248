"""`rlvr report --live` in a real browser, while a run writes its files."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import Command, wait_until
from tests.unit.report.runs import save_run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder of two runs, and the address of its page."""
    for name in ("a", "b"):
        save_run(tmp_path / "runs" / name)
    out = tmp_path / "out"
    command = Command("report", "--live", str(tmp_path / "runs"), "--port", "0", log=tmp_path / "log", out=out)
    wait_until(lambda: out.exists() and out.read_text().endswith("/\n"))
    address = out.read_text().strip()
    yield tmp_path / "runs", address
    command.send(signal.SIGTERM)
    command.wait()
    assert "Traceback" not in command.err


def log(run: Path, step: int, value: float) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "reward/mean": value}) + "\n")


@pytest.mark.browser
def test_the_page_follows_the_run_and_leaves_a_reader_alone(server: tuple[Path, str]) -> None:
    from playwright.sync_api import sync_playwright

    runs, address = server
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address + "#curves")
        page.wait_for_selector("#panel-curves svg")
        sections = page.locator("#panel-curves details")
        sections.last.locator("summary").click()
        are_open = "all => all.map(one => one.open)"
        assert sections.evaluate_all(are_open) == [True, False]
        assert "0.123" not in page.inner_text("#panel-curves")
        log(runs / "a", 77, 0.123)
        page.locator("#live", has_text="as of").wait_for()
        assert "0.123" in page.inner_text("#panel-curves")
        assert sections.evaluate_all(are_open) == [True, False]
        save_run(runs / "sweep" / "c")
        page.locator("#header", has_text="3 runs").wait_for()
        (runs / "sweep" / "c" / "error.txt").write_text("it broke\n")
        page.locator("#header .note", has_text="c failed: it broke").wait_for()
        assert page.locator("#header").bounding_box()["height"] < 200  # pyright: ignore[reportOptionalSubscript]
        page.click("#tab-rollouts")
        log(runs / "b", 78, 0.5)
        page.wait_for_selector("#live button")
        page.click("#live button")
        page.locator("#live", has_text="as of").wait_for()
        assert page.url.endswith("#rollouts")
        assert complaints == []
        browser.close()

"""The report in a real browser, opened from the disk without a network."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlvr.records.checks import Check, write_checks
from rlvr.records.rollouts import CallRecord, EpisodeRecord
from rlvr.report.run import write_run_report
from rlvr.types import TraceStep
from tests.unit.report.runs import episode, save_run

playwright_api = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.browser

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
WIDE = "W" * 300
TABS = ("curves", "health", "doctor", "audit", "rollouts", "settings")


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A page with everything it asked for and complained about."""

    page: playwright_api.Page
    requests: list[str]
    complaints: list[str]


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright_api.Browser]:
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: playwright_api.Browser) -> Iterator[Opener]:
    opener = Opener(browser)
    yield opener
    opener.close()


class Opener:
    """Opens pages in contexts of their own, offline."""

    def __init__(self, browser: playwright_api.Browser) -> None:
        self._browser = browser
        self._contexts: list[playwright_api.BrowserContext] = []

    def __call__(self, path: Path, tab: str = "curves", *, width: int = 1300, scheme: str = "light") -> Opened:
        context = self._browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
        context.set_offline(True)
        self._contexts.append(context)
        page = context.new_page()
        found = Opened(page=page, requests=[], complaints=[])
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("console", lambda message: found.complaints.append(message.text))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (found.complaints.append(dialog.message), dialog.dismiss()))
        page.set_default_timeout(5000)
        page.goto(f"file://{path}#{tab}")
        page.wait_for_selector(f"#panel-{tab} > *")
        if tab == "rollouts":
            page.wait_for_selector("#panel-rollouts[data-ready]")
        return found

    def close(self) -> None:
        for context in self._contexts:
            context.close()


def episodes(step: int, count: int) -> list[EpisodeRecord]:
    """`count` episodes, every second one right and every third one cut off; step 1 and 3 have the same examples."""
    return [
        episode(
            group=number // 4,
            sample=number % 4,
            example=f"example {number // 4} of {'both' if step != 2 else 'two'}",
            prompt=f"<q> prompt {number} =",
            completion=f"answer {number} at {step}",
            reward=float(number % 2),
            advantage=[-1.5, 0.5][number % 2],
            stop="length" if number % 3 == 0 else "stop",
            behavior=(-0.25, -2.5),
            trainer=(-0.25, -2.6),
            versions=(3, 3 + number % 2),
        )
        for number in range(count)
    ]


def hostile() -> EpisodeRecord:
    call = CallRecord(name=HOSTILE, arguments={HOSTILE: HOSTILE}, problem=HOSTILE)
    kinds: Sequence[tuple[str, bool | None]] = (("query", None), ("document", True), ("cite", False), ("answer", False))
    trace = [TraceStep(kind=kind, text=HOSTILE + WIDE, ok=ok, id=HOSTILE) for kind, ok in kinds]  # type: ignore[arg-type]
    text = f"{HOSTILE} {WIDE}"
    said = {"prompt": text, "completion": text, "reply": text, "status": HOSTILE, "example": HOSTILE + WIDE}
    return episode(group=99, calls=(call,), trace=trace, **said)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run of 3 recorded steps with 40 episodes each, and a hostile one."""
    metrics = {}
    for step in range(1, 21):
        metrics[step] = {"reward/mean": step / 20, "loss/total": 1e-9 * step, "rollout/truncated_share": 0.8}
        if step % 5 == 0:
            ends = {"": 0.0, "_low": -0.1, "_high": 0.1}
            metrics[step] |= {f"eval/rpn/accuracy{end}": step / 25 + move for end, move in ends.items()}
    metrics[20]["policy/ratio"] = math.nan
    rollouts = {1: episodes(1, 40), 2: episodes(2, 40), 3: [*episodes(3, 40), hostile()]}
    run = save_run(tmp_path_factory.mktemp("report") / "run", metrics=metrics, rollouts=rollouts)
    (run / "config.yaml").write_text((run / "config.yaml").read_text() + f"# {HOSTILE}{WIDE}\n")
    (run / "rollouts" / "step_000004.jsonl.gz").write_bytes(b"damaged")
    evidence = {"texts": [{"text": HOSTILE + WIDE}]}
    write_checks(run, "doctor", [Check(name=HOSTILE + WIDE, status="ok", says=HOSTILE, evidence=evidence)])
    bad = {"status": "fail", "says": HOSTILE + WIDE, "remedy": HOSTILE}
    write_checks(run, "audit", [Check(name="fine", status="ok", says="fine"), Check(name="echo", **bad)])
    return write_run_report([run]).path


def count(page: playwright_api.Page) -> str:
    return page.inner_text("#panel-rollouts [role=status] >> nth=0").split(" episodes")[0]


def test_it_opens_without_network_or_complaint_and_draws_curves(opened: Opener, report: Path) -> None:
    found = opened(report)
    page = found.page
    page.wait_for_selector(".chart path.line")
    assert page.locator(".chart").count() == 3
    assert page.locator(".chart path.band").count() == 1
    points = page.locator(".chart:has-text('reward/mean') path.line").get_attribute("d") or ""
    heights = [float(point.split(" ")[1]) for point in points[1:].split("L")]
    assert len(heights) == 20
    assert heights == sorted(heights, reverse=True)  # a rising curve
    assert "step_000004.jsonl.gz is damaged" in page.inner_text("header")
    for tab in TABS:
        page.click(f"#tab-{tab}")
        page.wait_for_selector(f"#panel-{tab} > *")
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith("file://")] == []
    assert len(found.requests) == 1


def test_what_commands_found_has_a_tab_with_the_wrong_ones_first(opened: Opener, report: Path) -> None:
    page = opened(report, "audit").page
    assert page.inner_text("#tab-audit") == "Audit ▲ 1"
    assert page.inner_text("#tab-doctor") == "Doctor"
    assert page.locator("#panel-audit .name").all_inner_texts() == ["echo", "fine"]


def test_a_curve_is_read_with_the_pointer_and_with_keys(opened: Opener, report: Path) -> None:
    page = opened(report).page
    chart = page.locator(".chart:has-text('reward/mean')")
    readout = chart.locator(".readout")
    assert readout.inner_text() == "1"
    box = chart.locator("svg").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.56, box["y"] + box["height"] / 2)
    playwright_api.expect(readout).to_contain_text("step 1")
    accuracy = page.locator(".chart:has-text('eval/rpn/accuracy') .readout")
    playwright_api.expect(accuracy).to_contain_text("step 10: 0.4 (0.3 to 0.5)")  # the cursor is the same everywhere
    chart.locator("svg").focus()
    page.keyboard.press("Home")
    playwright_api.expect(readout).to_have_text("step 1: 0.05")
    page.keyboard.press("ArrowRight")
    playwright_api.expect(readout).to_have_text("step 2: 0.1")


def test_signals_that_look_wrong_come_first_with_a_sentence(opened: Opener, report: Path) -> None:
    page = opened(report, "health").page
    first = page.locator(".signal").first.inner_text()
    assert "looks wrong" in first
    assert "rollout/truncated_share" in first
    assert "Raise rollout.max_completion_tokens" in first
    assert "policy/ratio is not a number" in page.inner_text("#panel-health")


FILTERS = [  # one on top of the other: which control, its value, how many of 121 are left
    ("[aria-label=step]", "step 2", 40),
    ("[aria-label='lowest reward']", "0.5", 20),
    ("[aria-label='lowest reward']", "1", 20),  # a bound is inside
    ("[aria-label='highest reward']", "1", 20),
    ("[aria-label='stop reason']", "length", 7),
    ("[type=search]", "ANSWER 3 ", 1),
]


def test_filters_narrow_the_list(opened: Opener, report: Path) -> None:
    page = opened(report, "rollouts").page
    assert count(page) == "121 of 121"
    for control, value, num_left in FILTERS:
        is_list = page.locator(control).evaluate("node => node.tagName") == "SELECT"
        page.select_option(control, label=value) if is_list else page.fill(control, value)
        assert count(page) == f"{num_left} of 121"
    assert page.locator(".row").count() == 1
    page.click("text=Reset")
    assert count(page) == "121 of 121"
    page.fill("[type=search]", "no such text")
    assert count(page) == "0 of 121"
    page.fill("[type=search]", "")
    for order, first in (("advantage, highest first", "1"), ("reward, lowest first", "0")):
        page.select_option("[aria-label=order]", label=order)
        assert page.locator(".row >> nth=0").inner_text().startswith(first)


def test_influence_is_a_column_and_an_order(opened: Opener, tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", rollouts={3: episodes(3, 8)})
    shares = [0.0, -0.25, 0.125, 0.0, 0.5, 0.0, 0.0, -0.125]
    told = [{"group": n // 4, "sample_index": n % 4, "share": share} for n, share in enumerate(shares)]
    (tmp_path / "run.influence").mkdir()
    (tmp_path / "run.influence/step_000003.json").write_text(json.dumps({"episodes": told}))
    page = opened(write_run_report([run]).path, "rollouts").page
    for order, first in (("helped most", "influence 50.0 %"), ("hurt most", "influence -25.0 %")):
        page.select_option("[aria-label=order]", label=f"influence, {order} first")
        assert first in page.locator(".row >> nth=0").inner_text()
    page.click(".row >> nth=0")
    playwright_api.expect(page.locator(".facts-grid")).to_contain_text("influence on the update")


@pytest.mark.parametrize("width", [1300, 390])
def test_values_are_a_curve_an_order_and_a_color(opened: Opener, tmp_path: Path, width: int) -> None:
    records = episodes(3, 4)
    run = save_run(tmp_path / "run", rollouts={3: records})
    told = [
        {"group": 0, "sample_index": number, "states": [[0, 0], [0, 1]], "gold": [0.25, 0.25 + rise], "count": 4}
        | {"right": None if number == 1 else [1, 4], "decisive": 0 if rise > 0.05 else None}
        for number, rise in enumerate((0.0, 0.5, -0.25))
    ]
    (tmp_path / "run.explain").mkdir()
    (tmp_path / "run.explain/step_000003.json").write_text(json.dumps({"episodes": told}))
    found = opened(write_run_report([run]).path, "rollouts", width=width)
    page = found.page
    page.select_option("[aria-label=order]", label="rise of P(gold), largest first")
    rows = page.locator(".row").all_inner_texts()
    assert ["P(gold) +0.50" in rows[0], "P(gold) +0.00" in rows[1], "P(gold) -0.25" in rows[2]] == [True] * 3
    assert "P(gold)" not in rows[3]
    page.click(".row >> nth=0")
    figure = page.locator("figure.worth")
    playwright_api.expect(figure).to_contain_text("P(gold) from 0.25 to 0.75 over 2 states; the largest rise in turn 1")
    assert figure.locator(".decisive").count() == 1
    assert figure.locator(".worth-right").count() == 0
    box = figure.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= width  # nothing sticks out of a phone
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("text=By token")
    page.select_option("[aria-label='color by']", label="change of P(gold)")
    page.click(".token.sampled >> nth=0")
    playwright_api.expect(page.locator(".token-numbers")).to_contain_text("change of P(gold) 0.5")
    page.click(".row >> nth=1")
    assert figure.locator(".worth-right").count() == 2
    assert figure.locator(".decisive").count() == 0
    page.click(".row >> nth=3")
    playwright_api.expect(figure).to_have_count(0)
    assert found.complaints == []


def test_an_episode_opens_by_turn_and_by_token(opened: Opener, report: Path) -> None:
    found = opened(report, "rollouts")
    page = found.page
    page.click(".row >> nth=1")
    turns = page.locator(".turns")
    playwright_api.expect(turns).to_contain_text("<q> prompt 1 =")
    assert "answer 1 at 1" in turns.inner_text()
    assert "Gold: 7" in turns.inner_text()
    page.click("text=By token")
    tokens = page.locator(".token")
    assert tokens.all_inner_texts() == ["<q>", "3", "4", "+", "=", "7", "<eoe>"]
    assert page.locator(".token.sampled").count() == 2
    numbers = page.locator(".token-numbers")
    tokens.nth(6).hover()
    shown = ("id 6", "mask 1", "advantage 0.5", "ratio 0.90484", "behavior logprob -2.5", "trainer logprob -2.6")
    assert [part for part in (*shown, "policy version 4") if part not in numbers.inner_text()] == []
    page.select_option("[aria-label='color by']", label="policy version")
    assert "the stronger, the older; the newest is 4" in page.locator(".legend").first.inner_text()
    page.keyboard.press("Tab")
    tokens.nth(6).focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    tokens.nth(6).dispatch_event("pointerover", {"bubbles": True})  # sent by a redraw under a pointer that rests
    assert "id 4" in numbers.inner_text()
    assert "mask 0" in numbers.inner_text()
    page.click("text=As a table")
    assert page.locator("tbody tr").count() == 7
    assert "policy version" in page.locator("thead").last.inner_text()
    page.click(".row >> nth=0")
    page.wait_for_selector(".panes[data-episode='0']")
    page.click("text=By token")
    assert "policy version" not in page.locator(".tokens-view").inner_text()  # it is one for all tokens
    assert found.complaints == []


def test_the_list_is_walked_with_keys(opened: Opener, report: Path) -> None:
    page = opened(report, "rollouts").page
    page.focus(".list")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.wait_for_selector(".panes[data-episode='2']")
    page.keyboard.press("End")
    page.wait_for_selector(".panes[data-episode='120']")
    assert page.get_attribute(".list", "aria-activedescendant") == "episode-120"
    page.click("[aria-label='previous episode']")
    page.wait_for_selector(".panes[data-episode='119']")


def test_two_steps_stand_side_by_side(opened: Opener, report: Path) -> None:
    page = opened(report, "rollouts").page
    page.click(".row >> nth=5")
    page.select_option("[aria-label='beside it']", label="step 3")
    page.wait_for_selector(".panes-2")
    left, right = page.locator(".pane").all_inner_texts()
    assert "step 1, group 1, sample 1" in left
    assert "step 3, group 1, sample 1" in right
    assert "There is no episode" not in right
    page.select_option("[aria-label='beside it']", label="step 2")
    second = page.locator(".pane >> nth=1")
    playwright_api.expect(second).to_contain_text("There is no episode of this example at step 2")
    page.select_option("[aria-label='beside it']", label="nothing")
    playwright_api.expect(page.locator(".pane")).to_have_count(1)
    page.click("text=Its group")
    assert count(page) == "4 of 121"


def test_pitfall_38_markup_in_what_a_model_wrote_stays_text(opened: Opener, report: Path) -> None:
    found = opened(report, "rollouts")
    page = found.page
    page.fill("[type=search]", "alert(1)")
    page.click(".row")
    playwright_api.expect(page.locator(".said.completion >> nth=0")).to_contain_text(HOSTILE)
    assert page.inner_text(".said.call").count(HOSTILE) >= 3
    assert HOSTILE in page.inner_text(".said.reply")
    page.click("text=By token")
    page.click("#tab-settings")
    assert HOSTILE in page.inner_text("#panel-settings")
    assert page.locator("img").count() == 0
    assert page.locator("main script").count() == 0
    assert found.complaints == []  # a dialog, a blocked script or a blocked picture would be one


def test_a_script_that_got_in_would_not_run(opened: Opener, report: Path) -> None:
    found = opened(report)
    put = """(text) => {
        const script = document.createElement("script");
        script.textContent = text;
        document.body.append(script);
        return window.bad;
    }"""
    assert found.page.evaluate(put, "window.bad = 1") is None
    assert any("Content Security Policy" in text for text in found.complaints)


def background(page: playwright_api.Page) -> int:
    """Brightness of the page's background, 0 to 255."""
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in color[4:-1].split(",")) // 3


def test_dark_and_light(opened: Opener, report: Path) -> None:
    assert background(opened(report, scheme="light").page) > 200
    page = opened(report, scheme="dark").page
    assert background(page) < 60
    page.click("text=Colors: auto")
    assert background(page) > 200
    page.reload()
    page.wait_for_selector("text=Colors: light")
    assert background(page) > 200
    page.emulate_media(media="print", color_scheme="dark")
    assert background(page) == 255


@pytest.mark.parametrize("tab", TABS)
def test_a_phone_needs_no_sideways_scrolling(opened: Opener, report: Path, tab: str) -> None:
    page = opened(report, tab, width=360).page
    if tab == "rollouts":
        page.fill("[type=search]", "alert(1)")
        page.click(".row")
        page.wait_for_selector(".turns")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.click("text=By token")
        page.wait_for_selector(".token")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_long_list_draws_only_what_is_seen(opened: Opener, tmp_path: Path) -> None:
    run = save_run(tmp_path / "run", rollouts={step: episodes(step, 600) for step in range(1, 6)})
    page = opened(write_run_report([run]).path, "rollouts").page
    assert count(page) == "3,000 of 3,000"
    assert page.locator(".row").count() < 60
    page.evaluate("document.querySelector('.list').scrollTop = 1e9")
    playwright_api.expect(page.locator(".row").last).to_contain_text("answer 599 at 5")
    assert page.locator(".row").count() < 60


def test_two_runs_share_charts(opened: Opener, tmp_path: Path) -> None:
    runs = [save_run(tmp_path / name) for name in ("first", "second")]
    found = opened(write_run_report(runs, tmp_path / "both.html").path)
    assert found.page.inner_text("h1") == "first and second"
    lines = found.page.locator(".chart >> nth=0 >> path.line").all()
    assert [line.get_attribute("stroke-dasharray") for line in lines] == [None, "6 3"]  # more than a color differs
    found.page.click("#tab-rollouts")
    found.page.wait_for_selector("#panel-rollouts[data-ready]")
    assert "second, step 3" in found.page.inner_text("[aria-label=step]")
    assert found.complaints == []


def test_many_runs_fold_their_facts_and_are_filtered(tmp_path: Path, opened: Opener) -> None:
    for number in range(6):
        save_run(tmp_path / f"seed-{number}")
    report = write_run_report([tmp_path])
    found = opened(report.path, width=390)
    page = found.page
    assert page.locator("#header").bounding_box()["height"] < 250  # of a phone's 800
    legend = page.locator("#panel-curves").inner_text
    assert "seed-5" in legend()
    lines = page.locator("#panel-curves .legend line").all()
    looks = {(line.get_attribute("class"), line.get_attribute("stroke-dasharray")) for line in lines}
    assert len(looks) == 6  # no two runs look alike
    page.fill("#runs", "seed-3")
    page.locator("#header", has_text="1 of 6 runs").wait_for()
    assert "seed-5" not in legend()
    page.fill("#runs", "seed= name=rpn")
    page.locator("#header", has_text="6 of 6 runs").wait_for()
    page.fill("#runs", "seed-3 nonsense")
    page.locator("#header", has_text="0 of 6 runs").wait_for()
    page.fill("#runs", "")
    page.locator("#panel-curves", has_text="seed-5").wait_for()
    assert found.complaints == []

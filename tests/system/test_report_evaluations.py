"""Two evaluations in a browser: tables, the examples where they disagree, one of them side by side, the drawn trace."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr.cli.main import main
from rlvr.records.graded import EvaluationRecord, GradedTurn, write_jsonl
from rlvr.records.rollouts import CallRecord
from rlvr.types import TraceStep
from tests.unit.evaluation.records import record
from tests.unit.rewards.test_rpn import made, scored
from tests.unit.tasks.multihop_episodes import answer, call, make_qa, play, said

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=document.title='run'> <script>document.title='run'</script>"
EXAMPLES = {  # expression: answer, what the first model writes, what the second one writes
    "4 0 1 + +": ("5", "4 2 + = 6 <eoe>", "4 1 + = 5 <eoe>"),
    "3 4 + 2 *": ("1", "1 <eoe>", "7 2 * = 1 <eoe>"),
    "3 4 +": ("7", "7 <eoe>", f"8 {HOSTILE} <eoe>"),
    "2 2 +": ("4", "5 <eoe>", "6 <eoe>"),
    "1 2 + 3 4 + *": ("8", "3 7 8 * = 8 <eoe>", "3 7 * = 8 <eoe>"),
}


def rpn_records() -> list[EvaluationRecord]:
    """Both models on every example, scored and traced by the real verifier."""
    return [
        rpn_record(expression, gold, both[place], model)
        for place, model in enumerate(("runs/before", "runs/after"))
        for expression, (gold, *both) in EXAMPLES.items()
    ]


def rpn_record(expression: str, gold: str, written: str, model: str) -> EvaluationRecord:
    prompt, words = f"<boe> {expression} =", written.split()
    score = scored(made(written, gold, prompt))
    turn = GradedTurn(completion=written, token_ids=tuple(range(len(words))), logprobs=(-2.5,) * len(words))
    return record(
        expression,
        score.parts["correct"] == 1.0,
        model=model,
        prompt=prompt,
        turns=(turn,),
        expected=gold,
        answer=words[-2] if score.status == "scored" else None,
        reward=score.value,
        trace=score.trace,
        tags=(f"{len(expression.split()) // 2}_operators",),
    )


def musique_record() -> EvaluationRecord:
    """An episode that searches, reads, cites rightly and wrongly, and answers wrong; traced by the real task."""
    task = make_qa(top_n=3)
    example = task.eval_examples(1)[0]
    support = next(iter(example.metadata["support"]))
    title = next(document.title for document in example.metadata["documents"] if document.id == support)
    calls = (
        call("retrieve_documents", query=title, top_n=12),
        call("get_document", doc_id="404"),
        answer(HOSTILE, (support, "404")),
    )
    score, grade, _ = play(task, example, *map(said, calls))
    records = [CallRecord(name=one.name, arguments=dict(one.arguments), problem=None) for one in calls]
    return record(
        example.id,
        grade.correct,
        model="runs/after",
        task="musique",
        retriever="bm25",
        prompt=HOSTILE,
        turns=tuple(GradedTurn(completion=HOSTILE, calls=(one,)) for one in records),
        expected=example.answer,
        answer=grade.answer,
        trace=score.trace,
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page that `rlvr report` writes of a folder of records."""
    folder = tmp_path_factory.mktemp("evaluations")
    records = rpn_records()
    write_jsonl(str(folder / "before.jsonl"), records[: len(EXAMPLES)])
    write_jsonl(str(folder / "after.jsonl"), [*records[len(EXAMPLES) :], musique_record()])
    assert main(["report", str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser(report: Path) -> Iterator[Any]:
    """After the page is written: Playwright's loop runs as long as its browser, and no other one could."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of a window; whatever the console says or the network is asked for fails the test."""
    context = browser.new_context(viewport=getattr(request, "param", {"width": 1280, "height": 900}))
    context.set_offline(True)
    opened = context.new_page()
    opened.set_default_timeout(8000)
    trouble: list[str] = []
    opened.on("console", lambda message: trouble.append(message.text))
    opened.on("pageerror", lambda error: trouble.append(str(error)))
    opened.on("request", lambda asked: None if asked.url.startswith("file:") else trouble.append(asked.url))
    yield opened
    assert opened.title() != "run"
    assert opened.locator("img").count() == 0
    context.close()
    assert trouble == []


def open_examples(page: Any, report: Path) -> None:
    page.goto(report.as_uri() + "#examples")
    page.wait_for_selector(".ev-item")
    page.select_option("#ev-set", label="rpn")
    page.select_option("#ev-first", label="before")
    page.select_option("#ev-second", label="after")


def listed(page: Any) -> Sequence[str]:
    return page.locator(".ev-item .ev-asked").all_inner_texts()


def test_scores_stand_in_tables_with_their_intervals(page: Any, report: Path) -> None:
    page.goto(report.as_uri())
    page.wait_for_selector(".ev-bar")
    # 3 of 5 and 3 of 5: Wilson's interval, and one that crosses zero
    block = page.locator(".ev-set").filter(has_text="rpn").locator(".ev-block").first
    rows = block.locator(".ev-row").all_inner_texts()
    assert ["60.0 %" in row and "23.1 to 88.2" in row for row in rows] == [True, True]
    whisker = page.locator(".ev-bar .ev-whisker").first
    assert whisker.evaluate("node => node.getBoundingClientRect().width") > 100
    assert "no difference in accuracy that chance would not explain" in page.locator(".ev-pair").inner_text()
    assert page.locator(".ev-difference").count() == 1
    assert page.get_by_text("1 operators").count() == 1
    assert page.get_by_text("tokens written").first.is_visible()


FILTERS = [  # each by itself: a list, its choice, and what is left
    ("#ev-grade", "disagree", ["4 0 1 + +", "3 4 +"]),
    ("#ev-grade", "right-one", ["4 0 1 + +"]),
    ("#ev-grade", "wrong", ["4 0 1 + +", "2 2 +"]),
    ("#ev-grade", "both-wrong", ["2 2 +"]),
    ("#ev-tag", "3_operators", ["1 2 + 3 4 + *"]),
]


def test_pitfall_38_the_filter_for_disagreement(page: Any, report: Path) -> None:
    open_examples(page, report)
    assert len(listed(page)) == 5
    for control, choice, left in FILTERS:
        everything = page.locator(control).input_value()
        page.select_option(control, choice)
        assert listed(page) == left
        assert page.locator("#ev-count").inner_text().startswith(f"{len(left)} of 5 example")
        page.select_option(control, everything)
    for text, left in (("ONERROR", ["3 4 +"]), ("there is nothing like it", [])):
        page.fill("#ev-text", text)
        assert listed(page) == left
    assert "No example is like that." in page.locator("#ev-list").inner_text()


def test_pitfall_28_the_first_wrong_step_is_marked(page: Any, report: Path) -> None:
    open_examples(page, report)
    page.get_by_text("4 0 1 + +").first.click()
    sides = page.locator(".ev-side-card")
    sides.nth(1).wait_for()
    assert sides.locator("h3").all_inner_texts() == ["before", "after"]
    boxes = [sides.nth(number).bounding_box() for number in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    wrong, right = (sides.nth(number).locator(".trace-line") for number in range(2))
    assert wrong.evaluate_all("nodes => nodes.map(node => node.dataset.ok)") == ["null", "false", "true"]
    marked = sides.nth(0).locator(".trace-first-wrong")
    assert marked.count() == 1
    assert "4 2 +" in marked.inner_text()
    assert "First wrong line. The result is wrong: 0 1 + became 2." in marked.inner_text()
    assert marked.locator("mark").all_inner_texts() == ["2"]
    assert right.evaluate_all("nodes => nodes.map(node => node.dataset.ok)") == ["null", "true", "true"]
    assert sides.nth(1).locator(".trace-first-wrong").count() == 0
    assert "is wrong; the gold answer is 5" in sides.nth(0).inner_text()
    assert "5 is right" in sides.nth(1).inner_text()
    sides.nth(1).get_by_role("button", name="tokens").click()
    tokens = sides.nth(1).locator(".ev-token")
    tokens.first.wait_for()
    assert tokens.all_inner_texts() == ["4 ", "1 ", "+ ", "= ", "5 ", "<eoe> "]
    assert "probability 8.2 %" in tokens.first.get_attribute("title")


def test_a_line_of_the_wrong_length_is_explained(page: Any, report: Path) -> None:
    open_examples(page, report)
    page.get_by_text("1 2 + 3 4 + *").first.click()
    reason = page.locator(".trace-first-wrong").inner_text()
    assert "One pass over the line above leaves 3 words, and here are 4 words." in reason


def test_pitfall_38_markup_in_what_a_model_wrote_stays_text(page: Any, report: Path) -> None:
    open_examples(page, report)
    page.get_by_text("3 4 +", exact=True).click()
    assert HOSTILE in page.locator(".ev-side-card").nth(1).locator(".ev-said").inner_text()
    page.select_option("#ev-set", label="musique")
    page.locator(".ev-item").click()
    assert HOSTILE in page.locator(".trace-answer").inner_text()


@pytest.mark.parametrize("page", [{"width": 1280, "height": 900}, {"width": 390, "height": 800}], indirect=True)
def test_a_search_is_drawn_from_its_query_to_the_answer(page: Any, report: Path) -> None:
    page.goto(report.as_uri() + "#examples")
    page.select_option("#ev-set", label="musique")
    page.locator(".ev-item").click()
    page.wait_for_selector(".trace-wires path")
    heads = page.locator('[data-node="query"]').all_inner_texts()
    assert heads[0].startswith("turn 1")
    assert "there is no such document" in heads[1]
    assert heads[2].endswith("cited, but never shown")
    shown = page.locator(".trace-document")
    kinds = shown.evaluate_all("nodes => nodes.map(node => node.dataset.ok)")
    assert kinds.count("true") >= 1
    signs = page.locator(".trace-document .trace-shape").all_text_contents()
    assert signs == ["◆" if kind == "true" else "○" for kind in kinds]
    # a curve from each cited document to the answer, the wrong one dashed; nothing sticks out of the page
    assert page.locator("path.trace-cited.good").count() == 1
    assert page.locator("path.trace-cited.bad").count() == 1
    ends = page.evaluate(
        """() => {
          const chain = document.querySelector('.trace-chain').getBoundingClientRect();
          const cited = document.querySelector('.trace-document.good').getBoundingClientRect();
          const path = document.querySelector('path.trace-cited.good');
          return [path.getPointAtLength(0).y + chain.top - (cited.top + cited.height / 2),
                  document.documentElement.scrollWidth - document.documentElement.clientWidth];
        }"""
    )
    assert abs(ends[0]) < 2
    assert ends[1] <= 0


def test_two_hundred_steps_are_drawn(page: Any, tmp_path: Path) -> None:
    trace = [TraceStep(kind="step", text=f"{number} 1 +", ok=number != 120) for number in range(200)]
    found = [TraceStep(kind="query", text=f"query {number}", turn=number) for number in range(100)]
    found += [TraceStep(kind="cite", text="A title", ok=False, id=str(number)) for number in range(100)]
    records = [
        replace(rpn_records()[0], example_id=name, trace=(*steps, TraceStep(kind="answer", text="7", ok=False)))
        for name, steps in (("derivation", trace), ("search", found))
    ]
    write_jsonl(str(tmp_path / "long.jsonl"), records)
    assert main(["report", str(tmp_path / "long.jsonl"), "--json"]) == 0
    page.goto((tmp_path / "long.html").as_uri() + "#examples")
    page.get_by_text("derivation").click()
    page.wait_for_selector(".trace-first-wrong")
    assert page.locator(".trace-line").count() == 200
    assert page.locator(".trace-first-wrong .trace-number").inner_text() == "120"
    page.get_by_text("search", exact=True).click()
    page.wait_for_selector(".trace-tip")
    assert page.locator('[data-node="query"]').count() == 101
    assert page.locator("path.trace-cited").count() == 100


def test_arrows_walk_through_the_list_and_pages_hold_a_hundred(page: Any, tmp_path: Path, capsys: Any) -> None:
    records = [replace(one, example_id=f"{one.example_id} {number}") for number in range(44) for one in rpn_records()]
    write_jsonl(str(tmp_path / "many.jsonl"), records)
    assert main(["report", str(tmp_path / "many.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 440
    page.goto((tmp_path / "many.html").as_uri() + "#examples")
    page.wait_for_selector(".ev-item")
    assert len(listed(page)) == 100
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Next").click()
    assert len(listed(page)) == 20
    page.locator(".ev-item").first.click()
    page.keyboard.press("ArrowDown")
    page.wait_for_function("document.querySelectorAll('.ev-item')[1].getAttribute('aria-current') === 'true'")
    assert page.locator("#ev-detail h2").inner_text() == listed(page)[1]

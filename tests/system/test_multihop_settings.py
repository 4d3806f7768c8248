"""Every setting of the multi-hop tasks does something: two values of each give something else to see.

`test_settings.py` checks that no setting is left out.
"""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.config.compose import load_config
from rlvr.retrieval.base import Document
from rlvr.run.tasks import open_tasks
from rlvr.tasks.dataset import DatasetTask
from tests.system.harness import once
from tests.system.multihop_settings import CORPUS, MULTIHOP_CASES, NAMES, Stage
from tests.system.test_data_settings import DataCase, words
from tests.unit.retrieval.test_services import Server
from tests.unit.tasks.data_tasks import FIXTURES, write_jsonl
from tests.unit.tasks.multihop_episodes import FOLDERS, make_qa, rows

pytestmark = pytest.mark.long  # every setting of the configuration, one after another


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More data of each task, in a folder each: questions with different numbers of hops, and two corpora."""
    root = tmp_path_factory.mktemp("other")
    for name in NAMES:
        (root / name).mkdir()
        write_jsonl(root / name / "hops.jsonl", more_hops(name, "train"))
        write_jsonl(root / name / "hops_too.jsonl", more_hops(name, "dev"))
        passages = documents(name)
        write_jsonl(root / name / "corpus.jsonl", passages)
        write_jsonl(root / name / "larger.jsonl", [*passages, {"id": "z", "title": "Zebra", "text": "It has stripes."}])
    write_jsonl(root / "musique" / "numbers.jsonl", [a_number()])
    return root


def more_hops(name: str, split: str) -> list[dict[str, Any]]:
    """The fixture's questions; every second one of HotpotQA, whose questions all have 2 hops, gets another hop."""
    found = rows(name, split)
    for row in found[::2] if name == "hotpotqa" else ():
        known = {title for title, _ in row["supporting_facts"]}
        row["supporting_facts"].append([next(title for title, _ in row["context"] if title not in known), 0])
    return found


def a_number() -> dict[str, Any]:
    """A question of 5 hops whose answer is 7."""
    row = next(row for row in rows("musique") if len(row["paragraphs"]) > 5)
    paragraphs = [each | {"is_supporting": place < 5} for place, each in enumerate(row["paragraphs"])]
    return row | {
        "id": "number",
        "question": "How many?",
        "answer": "7",
        "answer_aliases": [],
        "paragraphs": paragraphs,
        "question_decomposition": [{"question": "How many?", "answer": "7", "paragraph_support_idx": 0}],
    }


def documents(name: str) -> list[dict[str, str]]:
    """The passages of all questions of a fixture."""
    task = make_qa(name)
    examples = [*(task.train_example(index) for index in range(8)), *task.eval_examples(100)]
    found: dict[Document, None] = dict.fromkeys(each for example in examples for each in example.metadata["documents"])
    return [{"id": f"c{place}", "title": each.title, "text": each.text} for place, each in enumerate(found)]


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    """Both services at any address; `/slow` takes its time, `/flaky` fails the first time."""
    server = Server()
    never = threading.Event()

    def answer(body: dict[str, Any]) -> tuple[int, bytes]:
        path = server.asked[-1][0]
        if path.startswith("/slow"):
            never.wait(0.3)
        if path.startswith("/flaky") and len(server.asked) == 1:
            return 503, b"not yet"
        ranked = [{"index": index, "relevance_score": index} for index in range(len(body.get("documents", ())))]
        return 200, json.dumps({"results": ranked or [{"id": "1", "title": "Lyon", "text": "A town."}]}).encode()

    server.answer = answer
    server.http.handle_error = lambda request, client_address: None  # a client that has given up
    yield server
    server.http.shutdown()
    server.http.server_close()


def seen(case: DataCase, value: str, places: dict[str, str], folder: Path, server: Server) -> Any:
    """What the case looks at, of a new task."""
    name = case.base[0].removeprefix("task=")
    sets = ("task.train_sets='DATA,train'", "task.eval_sets='DATA,dev'", "model.name_or_path=none")
    idle = CORPUS if value == "paragraphs" else ()
    lines = once(*sets, *(line for line in case.base if line not in idle), f"{case.key}={value}")
    for word, place in (places | {"MADE": str(folder)}).items():
        lines = [line.replace(word, place) for line in lines]
    config = load_config(lines, config_name=name)
    server.asked.clear()
    folder.mkdir()
    with open_tasks(config, "qwen2", {}) as tasks:
        assert isinstance(tasks.own, DatasetTask)
        tasks.own.limit_prompts(words, 1_000)
        return case.look(Stage(config=config, task=tasks.own, server=server, folder=folder))


@pytest.mark.parametrize(
    "case", MULTIHOP_CASES, ids=[f"{c.base[0]}-{c.owner}-{c.key}-{c.a}-{c.b}" for c in MULTIHOP_CASES]
)
def test_a_setting_does_what_it_says(
    case: DataCase, other: Path, running: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLVR_TEST_KEY", "secret")
    name = case.base[0].removeprefix("task=")
    places = {"DATA": str(FIXTURES / FOLDERS[name]), "OTHER": str(other / name), "SERVICE": running.url}
    one = seen(case, case.a, places, tmp_path / "a", running)
    two = seen(case, case.b, places, tmp_path / "b", running)
    assert one != two

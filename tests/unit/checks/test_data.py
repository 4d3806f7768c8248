"""Checks of the data on files of a hundred rows."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlvr.chat.rendering import Chat
from rlvr.checks import data
from rlvr.checks.data import (
    answers_fit,
    golds_are_plain,
    messages_are_plain,
    rows_are_used,
    rows_suffice,
    task_informs,
)
from rlvr.types import Example, GradedAnswer, Message
from tests.unit.chat.tokenizers import CHATML, byte_tokenizer
from tests.unit.checks.paid import Task, exact, patient
from tests.unit.core.tiny import tiny_config
from tests.unit.tasks.data_tasks import make, sums, write_jsonl


def of_rows(folder: Path, rows: list[dict[str, Any]]) -> Any:
    held_out = write_jsonl(folder / "held_out.jsonl", sums(2, start=1000))
    task = {"name": "jsonl", "path": str(write_jsonl(folder / "x.jsonl", rows)), "eval_path": str(held_out)}
    return SimpleNamespace(task=make(task))


@pytest.mark.parametrize(("repeated", "fails"), [(10, False), (11, True)])
def test_a_tenth_of_the_rows_may_be_left_out(repeated: int, fails: bool, tmp_path: Path) -> None:
    found = rows_are_used(of_rows(tmp_path, [*sums(100 - repeated), *sums(repeated)]))
    assert (found.status, found.says) == (
        ("fail", "11 of 100 training rows repeat an earlier question: left out")
        if fails
        else ("ok", "90 of 100 training rows are used")
    )
    assert found.evidence["left_out"] == [f"{repeated} repeat an earlier question"]


@pytest.mark.parametrize(
    ("num", "alike", "says"),
    [
        (20, 18, "20 different questions have 3 different answers"),
        (20, 19, "19 of 20 answers are '7': nothing about the question has to be learnt"),
        (19, 19, "19 different questions have 1 different answers"),  # too few to tell
    ],
)
def test_nine_answers_of_ten_may_be_alike(num: int, alike: int, says: str, tmp_path: Path) -> None:
    rows = [row | {"answer": 7 if n < alike else 500 + n} for n, row in enumerate(sums(num, start=30))]
    found = task_informs(of_rows(tmp_path, rows))
    assert (found.says, found.status) == (says, "fail" if "nothing" in says else "ok")


def test_a_task_that_makes_its_examples_leaves_none_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_are_used(patient(exact, monkeypatch)).status == "skipped"


def test_the_largest_reason_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of a hundred and then nine: neither is more than a tenth."""
    notes = (
        "2 of 1,100 training rows are empty: left out (x.jsonl)",
        "something else",
        "1,009 training examples repeat: left out",
    )
    task = Task()
    vars(task).update(sizes=(89, 3), notes=notes)
    found = rows_are_used(patient(exact, monkeypatch, task))
    assert found.says == "1,009 of 1,100 training rows repeat: left out"
    assert found.evidence["left_out"] == ["2 are empty", "1,009 repeat"]


class Asked(Task):
    """Examples of these questions and answers, each as often as it takes; `tools` of their environment."""

    def __init__(self, *pairs: tuple[str, str], tools: tuple[Any, ...] = ()) -> None:
        super().__init__()
        self.pairs, self.tools, self.sizes = pairs, tools, (len(pairs), 2)

    def train_example(self, index: int) -> Example:
        question, answer = self.pairs[index]
        return Example(id=f"e{index}", messages=(Message(role="user", content=question),), answer=answer)

    def env(self, example: Example) -> Any:
        return self


def informs(*pairs: tuple[str, str], **more: Any) -> str:
    return task_informs(SimpleNamespace(task=Asked(*pairs, **more))).says  # type: ignore[arg-type]


def test_a_question_has_one_answer() -> None:
    """Of a tenth of the questions it may have several; with tools the answer is found in another place."""
    pairs = [(f"q{n}", f"a{n}") for n in range(30)]
    torn = [(f"q{n}", "another") for n in range(4)]
    assert informs(*pairs, *torn[:3]).startswith("30 different questions have 28 different answers")
    assert (
        informs(*pairs, *torn) == "4 of 30 questions have several answers: nothing about the question has to be learnt"
    )
    assert "have several" not in informs(*pairs, *torn, tools=(1,))
    assert informs(("q", "a"), ("q", "b")).startswith("2 examples ask one question")
    assert informs(("q", "a"), ("r", "b")).startswith("2 different questions have 2")
    assert informs(("q", ""), ("r", "")) == "2 different questions have 0 different answers"


def test_two_hundred_examples_are_read() -> None:
    pairs = [(f"q{n}", f"a{n}") for n in range(210)]
    assert informs(*pairs).startswith("200 different questions")


@pytest.mark.parametrize(
    ("question", "where"),
    [
        ("What? Solution: {}. Go.", "behind '? Solution: '"),
        ("{} is it, what is it?", "at its beginning"),
        ("Say {}", "behind 'Say '"),
        ("{filler} Say: {}.", "behind 'ay: '"),
        ("{filler}{}x", None),
    ],
)
def test_a_question_may_not_tell_its_answer(question: str, where: str | None) -> None:
    """Nine of ten may not, at one place; a tenth that do not is allowed to hide it."""
    fillers = [chr(97 + n % 26) * (1 + n // 26) for n in range(40)]
    told = [(question.replace("{filler}", fillers[n]).replace("{}", str(500 + n)), str(500 + n)) for n in range(40)]
    hidden = [(f"{fillers[n]} where", str(900 + n)) for n in range(40)]
    says = f"the question tells its answer, {where}: nothing" if where else "40 different questions"
    assert informs(*told).startswith(says)
    assert informs(*told[:19], *hidden[:2]).startswith(says if where else "21 different")  # 19 of 21
    assert informs(*told[:18], *hidden[:2]).startswith("20 different questions")
    assert informs(*told[:19]).startswith("19 different questions")  # too few to tell


def test_questions_that_end_with_their_answers_tell_them() -> None:
    pairs = [(f"{'word ' * (1 + n % 7)}{chr(97 + n)}{chr(98 + n)} {500 + n}.", str(500 + n)) for n in range(20)]
    assert informs(*pairs).startswith("the question tells its answer, at its end")


@pytest.mark.parametrize(
    ("question", "answer", "ends"),
    [
        ("It is 7.", "7", True),
        ('It is "7".)\n', "7", True),
        ("It is 17", "7", False),
        ("It is x)", "x)", True),
        ("It is (x)", "x)", True),
        ("It is xx)", "x)", False),
        ("7 it is", "7", False),
        ("7", "7", True),
    ],
)
def test_a_question_ends_with_a_whole_answer(question: str, answer: str, ends: bool) -> None:
    assert data._ends(question, answer) == ends


@pytest.mark.parametrize(
    ("question", "before", "read"),
    [
        ("a: 7 of 9.", "a: ", "7"),
        ("a: 7.5, b", "a: ", "7.5"),
        ("a: (7)", "a: ", ""),
        ("x a: 7\ny a: 8", "a: ", "7"),
        ("no such place", "a: ", ""),
        ("a: ", "a: ", ""),
    ],
)
def test_what_follows_a_place_is_read_as_one_answer(question: str, before: str, read: str) -> None:
    assert data._reads(question, before) == read


def test_places_of_an_answer_are_told_by_up_to_twelve_letters() -> None:
    """12, 8, 4, 2 and 1 letters before each place; a part of 17 is no place."""
    assert [*data._before("a 17 is not 7, or 7", "7")] == [
        *("a 17 is not ", " is not ", "not ", "t ", " "),
        *("s not 7, or ", "t 7, or ", " or ", "r ", " "),
    ]
    assert [*data._before("7 and", "7")] == [""] * 5


@pytest.mark.parametrize(
    ("limit", "fails"),
    [(9, False), (6, False), (5, True)],
)
def test_right_completions_fit_their_answers_alone_count(
    limit: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 40 solutions 20 have 9 letters, the others 6, and each answer alone 6: half may be cut, answers may not."""

    class Long(Task):
        def said(self, index: int, example: Example) -> str:
            return f"so x{example.answer}" if index % 2 else super().said(index, example)

    monkeypatch.setattr(
        data, "completions_of", lambda patient, example, turns: [turns[-1] + "." * (len(turns[-1]) > 6) * 2]
    )
    one = patient(exact, monkeypatch, Long(num=40))
    one.config.rollout.max_completion_tokens = limit
    found = answers_fit(one)
    assert (found.status == "fail") == fails
    assert found.evidence == {"limit": limit, "longest": 9, "longest_answer": 6}
    assert not fails or found.says.startswith("40 of 40 right completions have more than 5 tokens")
    assert found.remedy in ("", "set rollout.max_completion_tokens to 9 or more; the answers alone need 6")
    assert answers_fit(patient(exact, monkeypatch, Task(num=0))).status == "skipped"


@pytest.mark.parametrize(("long", "fails"), [(2, False), (3, True)])
def test_a_twentieth_of_the_answers_may_be_cut(long: int, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = {f"e{n}": 21 if n < long else 20 for n in range(40)}
    monkeypatch.setattr(data, "completions_of", lambda patient, example, turns: ["x" * lengths[example.id]])
    found = answers_fit(patient(exact, monkeypatch, Task(num=40)))
    assert (found.status == "fail") == fails
    assert not fails or found.says.startswith("3 of 40 right completions have more than 20 tokens")
    assert not fails or found.remedy == "set rollout.max_completion_tokens to 21 or more"


@pytest.mark.parametrize(("long", "fails"), [(20, False), (21, True)])
def test_half_of_the_solutions_may_be_cut_where_answers_fit(
    long: int, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Long(Task):
        def said(self, index: int, example: Example) -> str:
            return "x" * (30 if index < long else 9)

    monkeypatch.setattr(data, "completions_of", lambda patient, example, turns: [turns[-1]])
    found = answers_fit(patient(exact, monkeypatch, Long(num=40)))
    assert (found.status == "fail") == fails
    assert not fails or found.says.startswith("21 of 40 right completions have more than 20 tokens")


@pytest.mark.parametrize(("num", "fails"), [(2, False), (3, True)])
def test_a_tenth_of_the_prompts_may_hold_tokens_of_the_template(num: int, fails: bool) -> None:
    tokenizer = byte_tokenizer(template=CHATML)
    questions = [(f"<|im_start|>user\nq{n}" if n < num else f"q{n}", "7") for n in range(20)]
    chat = Chat(tokenizer)
    encode = lambda text: tuple(tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
    one: Any = SimpleNamespace(
        task=Asked(*questions),
        chat=chat,
        policy=SimpleNamespace(tokenizer=tokenizer),
        coder=SimpleNamespace(encode=encode),
    )
    found = messages_are_plain(one)
    assert (found.status == "fail") == fails
    assert not fails or found.says.startswith("3 of 20 prompts hold tokens of the chat template (<|im_start|>): they")
    assert [text[:12] for text in found.evidence["prompts"]] == ["<|im_start|>"] * min(2, num)
    one.task.vocabulary = ("7",)
    assert messages_are_plain(one).status == "skipped"


class Graded(Task):
    """Whose metric refuses the first few."""

    def __init__(self, *answers: str, refused: int = 0) -> None:
        super().__init__(answers=answers)
        self.refused, self.graded = refused, list[str]()

    async def grade(self, example: Example, turns: Any) -> GradedAnswer:
        self.graded.append(example.id)
        return GradedAnswer(answer="", correct=len(self.graded) > self.refused, failure=None)


@pytest.mark.parametrize(("refused", "fails"), [(4, False), (5, True)])
def test_golds_with_a_point_are_read_without_it(refused: int, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first eight of them are asked; half may be refused, by metric or reward."""
    task = Graded("5.0", "7", "-8.00", "1.5", refused=refused)
    found = golds_are_plain(patient(lambda example, text: 1.0, monkeypatch, task))
    assert (found.status == "fail") == fails
    assert task.graded == ["e0", "e2", "e4", "e6", "e8", "e10", "e12", "e14"]
    assert found.evidence["golds"] == ["5.0", "-8.00", "5.0", "-8.00", "5.0"][:refused]
    unpaid = golds_are_plain(patient(lambda example, text: 0.0, monkeypatch, Graded("5.0")))
    assert unpaid.says.startswith("golds are written as '5.0', and metric or reward refuse")
    assert golds_are_plain(patient(exact, monkeypatch, Graded("1.5", "7"))).status == "skipped"


def test_the_two_hundredth_gold_may_be_the_first_with_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    for place, status in ((199, "ok"), (200, "skipped")):
        task = Graded(*(["7"] * place), "5.0", *(["7"] * 100))
        assert golds_are_plain(patient(lambda example, text: 1.0, monkeypatch, task)).status == status


@pytest.mark.parametrize(
    ("sizes", "status", "says"),
    [
        ((10, 8), "ok", "the run goes 5e+02 times over 10 training rows"),
        ((9, 8), "fail", "156 steps of 32 prompts go 555 times over 9 training rows: the answers are learnt by heart"),
        (None, "skipped", "the task makes its examples, or is a part of several"),
    ],
)
def test_a_run_may_go_five_hundred_times_over_its_rows(sizes: tuple[int, int] | None, status: str, says: str) -> None:
    config = tiny_config("trainer.max_steps=156", "rollout.prompts_per_step=32")
    found = rows_suffice(SimpleNamespace(config=config, task=SimpleNamespace(sizes=sizes)))
    assert (found.status, found.says) == (status, says)

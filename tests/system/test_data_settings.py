"""Settings of data tasks, prompts, markers and rewards: two values of each give other prompts, examples or rewards.

No model takes part: what a setting does shows in what the task of the composed configuration asks and says of a text.
`test_settings.py` checks that no setting is left out.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlvr.config.compose import load_config
from rlvr.run.tasks import open_tasks
from rlvr.tasks.base import Task
from rlvr.tasks.two_hop import TwoHopTask
from rlvr.types import Example, Message, ToolCall, ToolSchema
from tests.system.harness import DATA
from tests.unit.tasks.data_tasks import graded, scored, solved, sums, turn, write_jsonl

pytestmark = pytest.mark.long  # every setting of the configuration, one after another

Look = Callable[[Task], Any]


@dataclass(frozen=True, kw_only=True)
class DataCase:
    """`a` and `b` are values of `key`; with `base` around them `look` must see something else in the run's task."""

    key: str
    a: str
    b: str
    look: Look
    base: tuple[str, ...]

    @property
    def owner(self) -> str:
        """The task's name, or the type of the part `x`, if the key is theirs."""
        if self.key.startswith("reward.parts."):
            return kind_of_part(self.base)
        return self.base[0].removeprefix("task=") if self.key.startswith("task.") else ""

    @property
    def path(self) -> str:
        """The key as `rlvr.config.config` has it: `reward.parts.<name>.weight`."""
        words = self.key.split(".")
        return ".".join([*words[:2], "<name>", *words[3:]]) if words[1] in ("parts", "sets") and words[2:] else self.key


def kind_of_part(lines: Sequence[str]) -> str:
    """The type of the part `x` that one of the lines adds."""
    return next(line for line in lines if line.startswith("+reward.parts.x")).split("type: ")[1].split(",")[0]


# ------------------------------------------------------------------------------------------------ what can be seen


def ids(task: Task) -> list[str]:
    """The first examples of the training stream."""
    return [task.train_example(index).id for index in range(12)]


def num_different(task: Task) -> int:
    return len({task.train_example(index).id for index in range(40)})


def max_words(task: Task) -> int:
    return max(words(task.train_example(index).messages) for index in range(20))


def held_out(task: Task) -> list[str]:
    return [example.id for example in task.eval_examples(100)]


def first(task: Task) -> Example:
    return task.train_example(0)


def answer(task: Task) -> str:
    return first(task).answer


def messages(task: Task) -> tuple[Message, ...]:
    return first(task).messages


def question(task: Task) -> str:
    return messages(task)[-1].content


def shown(task: Task) -> list[str]:
    """The worked examples before the question."""
    return [message.content for message in messages(task) if message.role == "assistant"]


def said(task: Task) -> list[object]:
    """The completions that a supervised start of a pretrained model shows."""
    return [list(one.turns) for one in task.demonstrations(3)]


def demonstration(task: Task) -> str:
    return task.demonstration(0, 1.0)[1]


def of_tasks(task: Task) -> list[str]:
    return [task.train_example(index).metadata["task"] for index in range(12)]


def reward(text: str) -> Look:
    """What the verifier says of a text; `{gold}` in it is the example's answer."""

    def look(task: Task) -> Any:
        score = scored(task, first(task), text.replace("{gold}", answer(task)))
        return score.status, None if score.status == "error" else score.value

    return look


def times(factor: float) -> Look:
    """The reward of a number so many times the gold."""
    return lambda task: scored(task, first(task), solved(str(float(answer(task)) * factor))).value


def grade(text: str) -> Look:
    """Whether the metric calls a text right."""
    return lambda task: graded(task, first(task), text.replace("{gold}", answer(task))).correct


def names(letter: str) -> Look:
    """How many persons, organizations or cities a world has."""

    def look(task: Task) -> int:
        assert isinstance(task, TwoHopTask)
        assert task.vocabulary is not None
        found = " ".join(task.facts(first(task)).values()).split()
        return len([word for word in task.vocabulary if word[0] == letter and word[1:].isdecimal() and word in found])

    return look


HERE = "tests.system.functions:"

# ----------------------------------------------------------------------------------------------------- the table


def case(key: str, a: Any, b: Any, look: Look, *base: str) -> DataCase:
    return DataCase(key=key, a=str(a), b=str(b), look=look, base=base)


def of(base: Sequence[str], *rows: tuple[str, Any, Any, Look]) -> list[DataCase]:
    """Cases of the section `task` with the same base."""
    return [case(f"task.{key}", a, b, look, *base) for key, a, b, look in rows]


PLAIN = ("prompt=plain", "reward=numeric")
RESULT = "task.answer_field=final_result"
DIGITS = ["<pad>", "<boe>", "<eoe>", "=", *map(str, range(10))]
EXAMPLES = (
    ("eval_share", 0.1, 0.6, lambda task: len(held_out(task))),
    ("metric", "numeric", "exact", grade("{gold}.0")),
    ("max_train_examples", "null", 2, num_different),
)
SHOT = "prompt.few_shot=1"
PROGRAMMED = ("task=code", "task.path=OTHER/gsm8k")
HALF_RIGHT = "```python\ndef same(x):\n    return 1\n```"
RIGHT = HALF_RIGHT.replace("1", "x")
ROWS = (
    *EXAMPLES,
    ("question_field", "question", "title", question),
    ("id_field", "null", "name", ids),
    ("context_fields", "[]", "[title]", question),
    ("max_prompt_tokens", "null", 7, num_different),
)

TASK = [
    *of(
        ("task=gsm8k", "task.path=DATA/gsm8k", *PLAIN),
        ("max_train_examples", "null", 3, num_different),
        ("max_prompt_tokens", "null", 16, num_different),
    ),
    case("task.demonstration_field", "null", "answer", said, "task=gsm8k", "task.path=DATA/gsm8k", SHOT),
    case("task.demonstration_field", "null", "title", said, "task=finqa", "task.path=OTHER/finqa", SHOT),
    case("task.demonstration_field", "null", "title", said, "task=jsonl", "task.path=OTHER/sums.jsonl", SHOT),
    case("task.demonstration_field", "null", "title", said, "task=hub", "task.path=OTHER/gsm8k", RESULT, SHOT),
    case("task.solution_lines", "null", 1, shown, "task=gsm8k", "task.path=DATA/gsm8k", "prompt.few_shot=9"),
    *of(
        ("task=gsm8k", "task.path=OTHER/repository", *PLAIN),
        ("subset", "main", "more", question),
        ("train_split", "train", "train+extra", num_different),
        ("eval_split", "test", "extra", held_out),
    ),
    case("task.path", "DATA/gsm8k", "OTHER/gsm8k", question, "task=gsm8k", *PLAIN),
    *of(
        ("task=finqa", "task.path=DATA/finqa", "prompt=plain", "reward=text"),
        ("max_train_examples", "null", 2, num_different),
        ("max_prompt_tokens", "null", 40, num_different),
        ("train_split", "train", "train+dev", num_different),
        ("eval_split", "test", "dev", held_out),
        ("answer", "number", "program", answer),
    ),
    case("task.path", "DATA/finqa", "OTHER/finqa", question, "task=finqa", *PLAIN),
    case("task.subset", "main", "more", question, "task=finqa", "task.path=OTHER/repository", *PLAIN),
    *of(
        ("task=jsonl", "task.path=OTHER/sums.jsonl", "prompt=plain"),
        ("path", "OTHER/sums.jsonl", "OTHER/more.jsonl", question),
        ("eval_path", "null", "OTHER/more.jsonl", held_out),
        ("answer_field", "answer", "twice", answer),
        *ROWS,
    ),
    *of(
        ("task=hub", "task.path=OTHER/gsm8k", "prompt=plain", RESULT),
        ("path", "OTHER/gsm8k", "OTHER/copy", question),
        ("train_split", "train", "train+extra", num_different),
        ("eval_split", "null", "test", held_out),
        ("answer_field", "final_result", "id", answer),
        *ROWS,
    ),
    case("task.subset", "main", "more", question, "task=hub", "task.path=OTHER/repository", RESULT),
    *of(
        PROGRAMMED,
        ("path", "OTHER/gsm8k", "OTHER/copy", question),
        ("train_split", "train", "train+extra", num_different),
        ("eval_split", "null", "test", held_out),
        ("eval_share", 0.1, 0.6, held_out),
        ("max_train_examples", "null", 2, num_different),
        ("max_prompt_tokens", "null", 23, num_different),
    ),
    case("task.subset", "main", "more", question, "task=code", "task.path=OTHER/repository"),
    case("task.demonstration_field", "null", "title", said, *PROGRAMMED, SHOT),
    *of(
        ("task=generator", f"task.source='{HERE}squares'"),
        ("source", f"'{HERE}few'", f"'{HERE}squares'", question),
        ("settings", "{size: 100}", "{size: 20}", num_different),
        ("eval_settings", "{}", "{size: 30}", held_out),
        ("max_prompt_tokens", "null", 5, max_words),
        *EXAMPLES,
    ),
    case("task.vocabulary", "null", DIGITS, demonstration, "task=generator", f"task.source='{HERE}in_words'"),
    *of(
        ("task=reasoning_gym", "task.dataset=chain_sum"),
        ("dataset", "chain_sum", "basic_arithmetic", question),
        ("settings", "{max_terms: 2}", "{min_terms: 5, max_terms: 6}", question),
        ("max_train_examples", "null", 2, num_different),
        ("max_prompt_tokens", "null", 50, max_words),
    ),
    *of(
        ("task=dates",),
        ("eval_share", 0.1, 0.6, held_out),
        ("max_train_examples", "null", 2, num_different),
        ("max_prompt_tokens", "null", 30, max_words),
    ),
    case("task.path", "null", "OTHER/articles.jsonl", question, "task=dates"),
    *of(
        ("task=two_hop",),
        ("num_persons", 40, 5, names("p")),
        ("num_organizations", 30, 6, names("o")),
        ("num_cities", 20, 4, names("c")),
        ("held_out_share", 0.2, 0.5, held_out),
        ("max_turns", 4, 3, lambda task: task.env(first(task)).max_turns),
    ),
    *of(
        ("task=k_hop",),
        ("mode", "flat", "peel", lambda task: task.demonstration(1, 1.0)),
        ("mode", "plan", "filler", lambda task: task.demonstration(1, 1.0)),
        ("mode", "plan", "shuffled_plan", lambda task: [task.demonstration(index, 1.0) for index in range(9)]),
        ("num_entities", 16, 5, lambda task: task.vocabulary),
        ("num_relations", 8, 6, lambda task: task.vocabulary),
        ("train_hops", "[2,3]", "[4]", question),
        ("eval_hops", "[2,3,4,5]", "[2]", held_out),
        ("held_out_share", 0.2, 0.5, held_out),
    ),
    *of(
        ("task=meta",),
        ("num_relations", 4, 3, lambda task: task.vocabulary),
        ("num_entities", 20, 5, question),
        ("max_supports", 4, 2, max_words),
        ("demonstrated_supports", 8, 5, lambda task: task.demonstration(1, 0.0)),
        ("shuffled_supports", "false", "true", question),
    ),
    *of(
        ("task=keep_one",),
        ("filter", "keep", "none", question),
        ("num_facts", 9, 4, question),
        ("num_entities", 30, 20, lambda task: task.vocabulary),
        ("num_relations", 6, 2, lambda task: task.vocabulary),
        ("easy_examples", 0, 5, question),
        ("keep_share", 0.35, 1.0, lambda task: [task.demonstration(index, 1.0) for index in range(5)]),
        ("held_out_share", 0.2, 0.5, held_out),
    ),
    *of(("task=mix",), ("parts", "{gsm8k: 1, finqa: 1}", "{gsm8k: 3, finqa: 1}", of_tasks)),
]  # fmt: skip

GSM8K = ("task=gsm8k", "task.path=DATA/gsm8k")
NUMBERS = ("task=finqa", "task.path=DATA/finqa")
PROGRAMS = (*NUMBERS, "task.answer=program", "reward=finqa_program", "prompt=financial_program")
GYM = ("task=reasoning_gym", "task.dataset=chain_sum")
VALUES = ", wrong_value: 0.0, invalid_value: 0.0"
PARTS: dict[str, tuple[str, tuple[str, ...], str]] = {
    # type: more settings, base, a text that it has something to say of
    "numeric": (f"{VALUES}, close_credit: 0.5, near_credit: 0.0", GSM8K, solved("{gold}")),
    "number_check": ("", GSM8K, solved("{gold}")),
    "finqa_numeric": (f"{VALUES}, relative_tolerance: 0.01, approximate_credit: 0.5", NUMBERS, solved("{gold}")),
    "finqa_program": (f"{VALUES}, mode: execution", PROGRAMS, solved("{gold}")),
    "format_exact": ("", GSM8K, solved("1")),
    "format_approximate": (", penalty: 0.0", GSM8K, solved("1")),
    "math": (f"{VALUES}, lenient: false", GSM8K, solved("{gold}")),
    "text": (", metric: em", GSM8K, solved("{gold}")),
    "length": (", free_tokens: 1, max_tokens: 5", GSM8K, "a b c"),
    "repetition": (", ngram_size: 1", GSM8K, "a b a b a c"),
    "custom": (f", function: '{HERE}length', settings: {{}}", GSM8K, "abc"),
    "reasoning_gym": ("", GYM, solved("{gold}")),
    "code": (", credit: all", PROGRAMMED, RIGHT),
}


def of_part(kind: str, *rows: tuple[str, Any, Any, Look]) -> list[DataCase]:
    """Cases of a part `x` of that type, beside the parts that follow the task; its weight is among them."""
    more, base, text = PARTS[kind]
    line = f"+reward.parts.x={{type: {kind}, weight: 1.0{more}}}"
    found = [("weight", 1.0, 2.0, reward(text)), *rows]
    return [case(f"reward.parts.x.{key}", a, b, look, *base, line) for key, a, b, look in found]


WRONG, UNREADABLE = reward(solved("123456")), reward(solved("about so many"))
ANSWERED = (("wrong_value", 0.0, -1.0, WRONG), ("invalid_value", 0.0, -1.0, UNREADABLE))
SLOW, LARGE, PROCESS = (
    f"+reward.parts.x={{type: custom, weight: 1.0, function: '{HERE}{name}', settings: {{}}}}"
    for name in ("slow", "large", "process")
)


EVIDENCE = "+reward.parts.x={type: evidence, weight: 1.0, of: retrieved, context_size: 3, num_contexts: 2}"


def late(task: Task) -> Any:
    """What the policy is asked of an episode that keeps all facts."""
    env = task.env(first(task))
    arguments = {"about": "e0", "ids": list(first(task).metadata["facts"])}
    call = ToolCall(id="call_0", name="keep", arguments=arguments)

    async def run() -> Any:
        await env.start()
        await env.step(Message(role="assistant", content="", tool_calls=(call,)))
        found = (await env.score([turn("x")])).late["x"]
        return found.weight, found.prompts

    return asyncio.run(run())


def num_processes(task: Task) -> int:
    """How many processes score six texts that come at once."""
    example = first(task)

    async def run() -> int:
        envs = [task.env(example) for _ in range(6)]
        for env in envs:
            await env.start()
        scores = await asyncio.gather(*(env.score([turn("x")]) for env in envs))
        return len({score.parts["x"] for score in scores})

    return asyncio.run(run())


REWARD = [
    *of_part("numeric", *ANSWERED, ("close_credit", 0.0, 0.5, times(1.05)), ("near_credit", 0.0, 0.5, times(1.15))),
    *of_part("number_check"),
    *of_part(
        "finqa_numeric",
        *ANSWERED,
        ("relative_tolerance", 0.01, 0.2, times(1.1)),
        ("approximate_credit", 0.5, 0.25, times(1.005)),
    ),
    *of_part(
        "finqa_program",
        ANSWERED[1],
        ("wrong_value", 0.0, -1.0, reward(solved("add(1, 2)"))),
        ("mode", "execution", "program", reward(solved("add(0.25, 0)"))),
    ),
    *of_part("format_exact"),
    *of_part("format_approximate", ("penalty", 0.0, 1.0, reward("no marker"))),
    *of_part(
        "math",
        ANSWERED[0],
        ("invalid_value", 0.0, -1.0, reward("nothing")),
        ("lenient", "false", "true", reward(solved("So it is ${gold}$."))),
    ),
    *of_part("text", ("metric", "em", "f1", reward(solved("about {gold}")))),
    *of_part("length", ("free_tokens", 1, 2, reward("a b c")), ("max_tokens", 5, 9, reward("a b c"))),
    *of_part("repetition", ("ngram_size", 1, 2, reward("a b a b a c"))),
    *of_part(
        "custom",
        ("function", f"'{HERE}length'", f"'{HERE}twice'", reward("abc")),
        ("settings", "{bonus: 0.0}", "{bonus: 1.0}", reward("abc")),
    ),
    *of_part("reasoning_gym"),
    *of_part("code", ("credit", "all", "share", reward(HALF_RIGHT))),
    *(
        case(f"reward.parts.x.{key}", a, b, late, "task=keep_one", EVIDENCE)
        for key, a, b in (
            ("weight", 1.0, 2.0),
            ("of", "retrieved", "cited"),
            ("context_size", 3, 2),
            ("num_contexts", 2, 1),
        )
    ),
    case("reward.timeout_s", 5.0, 0.2, reward("x"), *GSM8K, SLOW),
    case("reward.max_memory_mb", 4096, 512, reward("x"), *GSM8K, LARGE),
    case("reward.num_workers", 1, 2, num_processes, *GSM8K, PROCESS),
]

NO_SYSTEM = "prompt.system=null"
PROMPT = [
    case("prompt.system", "null", "Be brief.", messages, *GSM8K, "prompt=boxed", "reward=numeric"),
    case("prompt.user", "'{question}'", "'{question} Now.'", question, *GSM8K, "prompt=boxed", "reward=numeric"),
    case("prompt.answer_in", "solution", "boxed", reward("\\boxed{{gold}}"), *GSM8K, "reward=numeric", NO_SYSTEM),
    case("prompt.markers", "auto", "think", messages, *GSM8K),
    case("prompt.few_shot", 0, 2, lambda task: len(messages(task)), *GSM8K),
    case("markers.families", "{qwen2: working_out}", "{qwen2: think}", messages, *GSM8K),
    *(
        case(f"markers.sets.working_out.{key}", "'<a>'", "'<b>'", messages, *GSM8K)
        for key in ("reasoning_start", "reasoning_end", "solution_start", "solution_end")
    ),
]
DATA_CASES = [*TASK, *REWARD, *PROMPT]


# --------------------------------------------------------------------------------------------------------- data


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More data: files, a folder of them, and a repository in the Hub's format with two configurations."""
    root = tmp_path_factory.mktemp("other")
    write_jsonl(root / "sums.jsonl", rows(30, 0))
    write_jsonl(root / "more.jsonl", rows(9, 100))
    people = [{"title": f"Ada {n}", "text": f"Ada {n} (born {n} May 1950) is a poet."} for n in range(1, 10)]
    write_jsonl(root / "articles.jsonl", people)
    folders = ("gsm8k", "copy", "finqa", "repository/main", "repository/more")
    for start, folder in zip(range(200, 700, 100), folders, strict=True):
        (root / folder).mkdir(parents=True)
        for number, split in enumerate(("train", "test", "extra")):
            write_jsonl(root / folder / f"{split}.jsonl", rows(8, start + 10 * number))
    configs = "".join(
        f"- config_name: {name}\n  data_files:\n"
        + "".join(f"  - split: {split}\n    path: {name}/{split}.jsonl\n" for split in ("train", "test", "extra"))
        for name in ("main", "more")
    )
    (root / "repository" / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    return root


def rows(num: int, start: int) -> list[dict[str, Any]]:
    """Rows that are GSM8K's, FinQA's flat form and anybody's at once."""
    return [
        {
            "question": row["question"] + " Please." * (n % 4),
            "answer": f"It is\n#### {row['answer']}" if start >= 200 else row["answer"],
            "twice": 2 * row["answer"],
            "title": f"Number {n}?",
            "name": f"row {n}",
            "id": str(n),
            "pre_text": ["the page ."],
            "post_text": [],
            "table": [["a", str(n)]],
            "final_result": str(row["answer"]),
            "test_list": ["assert same(1) == 1", "assert same(2) == 2"],
            "code": "def same(x):\n    return x",
        }
        for n, row in enumerate(sums(num, start), start)
    ]


def words(found: Sequence[Message], tools: Sequence[ToolSchema] = ()) -> int:
    """Stands for a tokenizer: a token a word, and none for tools."""
    return sum(len(message.content.split()) for message in found)


# ------------------------------------------------------------------------------------------------------- the test


@pytest.mark.parametrize("case", DATA_CASES, ids=[f"{c.base[0]}-{c.owner}-{c.key}-{c.b}" for c in DATA_CASES])
def test_a_setting_does_what_it_says(case: DataCase, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVR_DATA", str(DATA))
    base = [line for line in case.base if not line.startswith(f"{case.key}=")]
    seen = [seen_with([*base, f"{case.key}={value}"], case.look, other) for value in (case.a, case.b)]
    assert seen[0] != seen[1]


def seen_with(lines: Sequence[str], look: Look, other: Path) -> Any:
    filled = [line.replace("DATA/", f"{DATA}/").replace("OTHER/", f"{other}/") for line in lines]
    config = load_config(["model.name_or_path=none", *filled], config_name="gsm8k")
    with open_tasks(config, "qwen2", {}) as tasks:
        tasks.own.limit_prompts(words, 1_000)
        return look(tasks.own)

"""The surface for programs with a loop of their own: questions, tools, scores."""

import asyncio
from typing import Any

import pytest

from rlvr.errors import ConfigError
from rlvr.types import Example, ToolCall
from rlvr_verifiers.musique import Game, open_game
from tests.unit.tasks.data_tasks import FIXTURES
from tests.unit.tasks.multihop_episodes import answer, call, play, said

SETS = (f"task.train_sets='{FIXTURES / 'musique'},train'", f"task.eval_sets='{FIXTURES / 'musique'},dev'")


@pytest.fixture(scope="module")
def game() -> Game:
    return open_game([*SETS, "task.max_top_n=9"])


def calls_of(example: Example) -> list[ToolCall]:
    """A search that finds something, a read document, a call that fails, an answer."""
    first = next(iter(example.metadata["support"]))
    search = call("retrieve_documents", query=example.messages[-1].content, top_n=3)
    broken = call("get_document", doc_id="99")
    return [search, call("get_document", doc_id=first), broken, answer(f"{example.answer} or so", (first, "0"))]


def test_scores_agree_to_the_last_digit_with_the_task(game: Game) -> None:
    async def outside(example: Example) -> tuple[Any, Any]:
        notes = game.begin(example)
        calls = calls_of(example)
        for each in calls[:-1]:
            await game.tools[each.name].call(each.arguments, notes)
        return await game.score(example, notes, calls), await game.grade(example, calls)

    for example in game.held_out():
        score, grade = asyncio.run(outside(example))
        ours, graded, _ = play(game.task, example, *(said(each) for each in calls_of(example)))
        assert score.value == ours.value
        assert score.parts == ours.parts
        assert score.diagnostics.items() <= ours.diagnostics.items()
        assert grade == graded


def test_questions_come_once_by_default_and_as_many_as_asked_for(game: Game) -> None:
    assert game.task.sizes == (8, 8)
    assert len({example.id for example in game.training()}) == 8
    assert len(game.training(20)) == 20
    assert [example.id for example in game.held_out(3)] == [example.id for example in game.held_out()][:3]


def test_only_tasks_with_documents_are_games() -> None:
    with pytest.raises(ConfigError, match="choose musique, hotpotqa or wiki2"):
        open_game(config_name="gsm8k")

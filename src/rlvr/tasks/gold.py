"""The completion that gives an answer at a state of an episode, with the tokens that are the answer itself."""

import json
from collections.abc import Mapping, Sequence

from rlvr.chat.rendering import Chat
from rlvr.core.value import Branch, State, states
from rlvr.errors import UserError
from rlvr.tasks.base import Task
from rlvr.types import Episode, Group, ToolSchema


def gold_branch(
    task: Task, chat: Chat, answer: str, before: str = "", tools: Sequence[ToolSchema] = ()
) -> Branch | None:
    """`<ans> c4 </ans>` with `c4` counted, to follow the text `before` of its completion; its prompt is empty.

    None for an empty answer, and where the task does not know its answers' format.
    """
    completion = task.answered(answer, before) if answer else None
    if completion is None:
        return None
    ids = chat.encode_completion(completion, tools)
    spelled = answer if isinstance(completion, str) else json.dumps(answer, ensure_ascii=False)[1:-1]
    texts = [chat.decode(ids[: count + 1]) for count in range(len(ids))]
    first = texts[-1].rfind(spelled)
    if first < 0:  # spelled otherwise by the tokenizer, or begun before: the whole completion counts, but for its end
        return Branch(prompt_ids=(), ids=ids, start=0, end=max(len(ids) - 1, 1))
    there = texts[-1][: first + len(spelled)]
    start = next(place for place, text in enumerate(texts) if len(text) > first)
    end = next(place for place, text in enumerate(texts) if text.startswith(there)) + 1  # with all bytes of a character
    return Branch(prompt_ids=(), ids=ids, start=start, end=end)


def gold_branches(
    task: Task, chat: Chat, episode: Episode, answer: str, states: Sequence[State], tools: Sequence[ToolSchema] = ()
) -> Mapping[State, Branch] | None:
    """What answers at each of the states; None where `gold_branch` is."""
    branches: dict[State, Branch] = {}
    known: dict[str, Branch | None] = {}  # before most turns the same
    for state in states:
        before = chat.decode(episode.turns[state.turn].completion.token_ids[: state.tokens])
        if before not in known:
            known[before] = gold_branch(task, chat, answer, before, tools)
        branch = known[before]
        if branch is None:
            return None
        branches[state] = branch
    return branches


def all_gold_branches(
    task: Task,
    chat: Chat,
    groups: Sequence[Group],
    *,
    every: int | None = None,
    answers: Sequence[str] | None = None,
) -> list[Mapping[State, Branch]]:
    """What answers right at the states of each episode of the groups (`rlvr.core.value.states`).

    `answers`, one for each episode, replace those of the examples. UserError if the task does not know the format of
    its answers, or an example has none.
    """
    pairs = [(group.example, episode) for group in groups for episode in group.episodes]
    golds = answers or [example.answer for example, _ in pairs]
    tools, branches = task.env(task.train_example(0)).tools, list[Mapping[State, Branch]]()
    for (example, episode), gold in zip(pairs, golds, strict=True):
        found = gold_branches(task, chat, episode, gold, states(episode, every), tools)
        if found is None:
            raise UserError(f"example {example.id}: has no answer whose format task={task.name} knows.")
        branches.append(found)
    return branches

import itertools
from collections.abc import Iterator

import pytest

from rlvr.data.problems import Problem, fingerprint, is_held_out
from rlvr.data.sources import DrawnSource, ListSource, ReplaySource, anything
from rlvr.errors import UserError
from rlvr.seeding import derive_seed

NUMBERS = [str(n) for n in range(30)]


def problem(name: object) -> Problem:
    text = str(name)
    return Problem(id=text, key=fingerprint(text), question=text, answer=text)


def problems(num: int, start: int = 0) -> list[Problem]:
    return [problem(n) for n in range(start, start + num)]


def names(source: ListSource | ReplaySource | DrawnSource, indices: range) -> list[str]:
    return [source.train(index, "train").id for index in indices]


def replay(num: int | None = None, seed: int = 0, **more: int) -> ReplaySource:
    def begin() -> Iterator[Problem]:
        return map(problem, itertools.count() if num is None else range(num))

    return ReplaySource(begin, eval_share=0.2, seed=seed, **more)


def drawn(different: int = 1_000_000, seed: int = 0, **more: int) -> DrawnSource:
    def draw(row: int, place: int) -> Problem:
        return problem(derive_seed(row, place) % different)

    return DrawnSource(draw, name="numbers", eval_share=0.2, seed=seed, **more)


def test_keys_ignore_case_and_whitespace_and_nothing_else() -> None:
    assert fingerprint("How  many\n eggs?") == fingerprint("how MANY eggs? ")
    assert fingerprint("how many eggs") != fingerprint("how many eggs?")
    assert fingerprint("a", "b") != fingerprint("a b")
    assert fingerprint("\ud800") != fingerprint("x")


def test_pitfall_38_the_held_out_questions_are_pinned() -> None:
    assert [n for n in range(60) if is_held_out(fingerprint(str(n)), 0.2)] == [3, 7, 11, 15, 18, 20, 42, 49, 50, 52, 53]


def test_every_epoch_is_another_permutation() -> None:
    source = ListSource(problems(20), [], seed=0)
    epochs = [names(source, range(20 * e, 20 * e + 20)) for e in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(NUMBERS[:20])] * 3
    assert NUMBERS[:20] != epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("make", [lambda: ListSource(problems(7), [], 0), lambda: replay(9), replay, drawn])
def test_pitfall_37_example_i_does_not_depend_on_the_past(make) -> None:
    straight = names(make(), range(40))
    assert [make().train(index).id for index in (0, 17, 39)] == [straight[index] for index in (0, 17, 39)]
    assert names(make(), range(39, -1, -1)) == straight[::-1]


def test_pitfall_38_held_out_order_ignores_file_and_seed() -> None:
    whole = ListSource([], problems(30), seed=0).held_out(30)
    assert [p.id for p in whole] != NUMBERS
    assert ListSource([], problems(30)[::-1], seed=5).held_out(30) == whole
    fewer = ListSource([], problems(15), seed=0).held_out(30)
    assert fewer == [p for p in whole if int(p.id) < 15]
    for make in (drawn, replay):
        assert make(seed=0).held_out(10) == make(seed=1).held_out(10)
    assert drawn().held_out(10)[:4] == drawn().held_out(4)


def test_leaving_out_counts_training_and_held_out() -> None:
    source = ListSource(problems(10), problems(4, start=100), seed=0)
    assert source.leave_out(lambda p: int(p.id) % 2 == 0, lambda p: p.id != "100") == [
        ("training", 5, 10),
        ("held-out", 1, 4),
    ]
    assert source.sizes == (5, 3)
    assert sorted(names(source, range(5))) == ["0", "2", "4", "6", "8"]
    assert source.holds_out(fingerprint("100"))
    assert not source.holds_out(fingerprint("1"))


def test_an_order_is_drawn_again_for_what_is_left() -> None:
    left = ListSource(problems(5), [], seed=0)
    source = ListSource(problems(10), [], seed=0)
    assert sorted(names(source, range(10)), key=int) == [str(n) for n in range(10)]
    source.train(0)
    source.leave_out(lambda problem: int(problem.id) < 5, lambda _: True)
    assert names(source, range(10)) == names(left, range(10))


def test_an_iterator_that_ends_gives_epochs() -> None:
    expected = [name for name in NUMBERS if not is_held_out(fingerprint(name), 0.2)]
    first, second = (names(replay(30), range(len(expected) * e, len(expected) * (e + 1))) for e in range(2))
    assert first == expected
    assert sorted(second) == sorted(expected)
    assert second != expected
    endless = names(replay(), range(500))
    assert len(set(endless)) == 500
    assert endless[: len(expected)] == expected


def test_max_train_keeps_the_first_examples() -> None:
    for make in (replay, drawn):
        few = {*names(make(max_train=3), range(30))}
        assert len(few) == 3
        assert few == {*names(make(max_train=3), range(3))}
    assert {*names(replay(max_train=3), range(30))} == {*names(replay(), range(3))}


@pytest.mark.parametrize("make", [lambda: replay(200), replay, drawn, lambda: drawn(50)])
def test_pitfall_38_held_out_keys_are_never_trained_on(make) -> None:
    source = make()
    held_out = {p.key for p in source.held_out(20)}
    assert 5 <= len(source.held_out(20)) == len(held_out) <= 20
    assert all(map(source.holds_out, held_out))
    assert not any(source.holds_out(source.train(index).key) for index in range(1_000))


def test_few_different_problems_come_to_an_end() -> None:
    assert 1 <= len(drawn(20).held_out(100)) < 20
    cycle = ReplaySource(lambda: (problem(n % 20) for n in itertools.count()), eval_share=0.2, seed=0)
    assert {p.id for p in cycle.held_out(100)} == {p.id for p in problems(20) if is_held_out(p.key, 0.2)}


def test_a_question_that_an_iterator_repeats_is_held_out_once() -> None:
    twice = ReplaySource(lambda: (problem(n // 2) for n in range(60)), eval_share=0.2, seed=0)
    held_out = [p.id for p in twice.held_out(100)]
    assert held_out == [p.id for p in problems(30) if is_held_out(p.key, 0.2)]


def test_endless_sources_leave_out_too() -> None:
    for source in (replay(), drawn()):
        assert source.leave_out(lambda p: int(p.id) % 2 == 0, lambda p: int(p.id) % 3 == 0) == ()
        source.leave_out(lambda p: int(p.id) % 5 == 0, anything)
        assert all(int(name) % 10 == 0 for name in names(source, range(30)))
        assert all(int(p.id) % 3 == 0 for p in source.held_out(10))


def test_nothing_to_train_on_is_an_error() -> None:
    for source in (replay(), replay(50), drawn()):
        source.leave_out(lambda p: False, anything)
        with pytest.raises(UserError, match="train on"):
            source.train(0)

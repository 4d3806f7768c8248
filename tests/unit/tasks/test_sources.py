import itertools
from collections.abc import Iterator

import pytest

from rlvr.errors import UserError
from rlvr.seeding import derive_seed
from rlvr.tasks.problems import Problem, fingerprint, is_held_out
from rlvr.tasks.sources import DrawnSource, ListSource, ReplaySource, anything


def problem(name: object) -> Problem:
    text = str(name)
    return Problem(id=text, key=fingerprint(text), question=text, answer=text)


def problems(num: int, start: int = 0) -> list[Problem]:
    return [problem(n) for n in range(start, start + num)]


def names(source: ListSource | ReplaySource | DrawnSource, indices: range, stream: str = "train") -> list[str]:
    return [source.train(index, stream).id for index in indices]


def replay(num: int | None = None, *, share: float = 0.2, seed: int = 0, **more: int) -> ReplaySource:
    def begin() -> Iterator[Problem]:
        numbers = itertools.count() if num is None else range(num)
        return (problem(n) for n in numbers)

    return ReplaySource(begin, eval_share=share, seed=seed, **more)


def drawn(seed: int = 0, *, different: int = 1_000_000, **more: int) -> DrawnSource:
    def draw(row: int, place: int) -> Problem:
        return problem(derive_seed(row, place) % different)

    return DrawnSource(draw, name="numbers", eval_share=0.2, seed=seed, **more)


def test_keys_do_not_depend_on_case_and_whitespace_and_nothing_else() -> None:
    assert fingerprint("How  many\n eggs?") == fingerprint("how MANY eggs? ")
    assert fingerprint("how many eggs") != fingerprint("how many eggs?")
    assert fingerprint("a", "b") != fingerprint("a b")
    assert fingerprint("\ud800") != fingerprint("x")


def test_pitfall_38_the_same_questions_are_held_out_in_every_process() -> None:
    assert [n for n in range(60) if is_held_out(fingerprint(str(n)), 0.2)] == [3, 7, 11, 15, 18, 20, 42, 49, 50, 52, 53]


def test_every_epoch_is_a_permutation_and_no_two_are_alike() -> None:
    source = ListSource(problems(20), [], seed=0)
    epochs = [names(source, range(20 * e, 20 * e + 20)) for e in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(str(n) for n in range(20))] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != [str(n) for n in range(20)]


@pytest.mark.parametrize("make", [lambda: ListSource(problems(7), [], 0), lambda: replay(9), replay, drawn])
def test_pitfall_37_example_i_does_not_depend_on_what_was_asked_before(make) -> None:
    straight = names(make(), range(40))
    assert [make().train(index).id for index in (0, 17, 39)] == [straight[index] for index in (0, 17, 39)]
    backwards = make()
    assert [backwards.train(index).id for index in reversed(range(40))] == straight[::-1]


def test_pitfall_38_held_out_order_is_no_file_order_and_depends_on_no_seed_or_neighbor() -> None:
    whole = ListSource([], problems(30), seed=0).held_out(30)
    assert [p.id for p in whole] != [str(n) for n in range(30)]
    assert ListSource([], problems(30)[::-1], seed=5).held_out(30) == whole
    fewer = ListSource([], problems(15), seed=0).held_out(30)
    assert fewer == [p for p in whole if int(p.id) < 15]


def test_leaving_out_counts_both_kinds() -> None:
    source = ListSource(problems(10), problems(4, start=100), seed=0)
    assert source.leave_out(lambda p: int(p.id) % 2 == 0, lambda p: p.id != "100") == [
        ("training", 5, 10),
        ("held-out", 1, 4),
    ]
    assert source.sizes == (5, 3)
    assert sorted(names(source, range(5))) == ["0", "2", "4", "6", "8"]
    assert source.holds_out(fingerprint("100"))
    assert not source.holds_out(fingerprint("1"))


def test_an_iterator_that_ends_gives_epochs_and_one_that_does_not_goes_on() -> None:
    expected = [str(n) for n in range(30) if not is_held_out(fingerprint(str(n)), 0.2)]
    ended = replay(30)
    assert names(ended, range(len(expected))) == expected
    second = names(ended, range(len(expected), 2 * len(expected)))
    assert sorted(second) == sorted(expected)
    assert second != expected
    endless = names(replay(), range(500))
    assert len(set(endless)) == 500
    assert endless[: len(expected)] == expected


def test_max_train_is_the_first_so_many() -> None:
    source = replay(max_train=3)
    assert set(names(source, range(30))) == set(names(replay(), range(3)))
    few = drawn(max_train=3)
    assert set(names(few, range(30))) == set(names(few, range(3)))
    assert len(set(names(few, range(3)))) == 3


@pytest.mark.parametrize("make", [lambda: replay(200), replay, drawn, lambda: drawn(different=50)])
def test_pitfall_38_what_is_held_out_by_hash_is_never_trained_on(make) -> None:
    source = make()
    held_out = source.held_out(20)
    assert 5 <= len(held_out) <= 20
    assert len({p.key for p in held_out}) == len(held_out)
    assert all(source.holds_out(p.key) for p in held_out)
    trained = {source.train(index).key for index in range(1_000)}
    assert not trained & {p.key for p in held_out}
    assert not any(source.holds_out(key) for key in trained)


def test_held_out_problems_do_not_depend_on_the_seed() -> None:
    assert drawn(seed=0).held_out(10) == drawn(seed=1).held_out(10)
    assert replay(seed=0).held_out(10) == replay(seed=1).held_out(10)
    assert drawn().held_out(10)[:4] == drawn().held_out(4)


def test_few_different_problems_come_to_an_end() -> None:
    assert 1 <= len(drawn(different=20).held_out(100)) < 20
    cycle = ReplaySource(lambda: (problem(n % 20) for n in itertools.count()), eval_share=0.2, seed=0)
    assert {p.id for p in cycle.held_out(100)} == {p.id for p in problems(20) if is_held_out(p.key, 0.2)}


def test_what_is_left_out_is_left_out_of_endless_sources_too() -> None:
    for source in (replay(), drawn()):
        assert source.leave_out(lambda p: int(p.id) % 2 == 0, lambda p: int(p.id) % 3 == 0) == ()
        source.leave_out(lambda p: int(p.id) % 5 == 0, anything)
        assert all(int(name) % 10 == 0 for name in names(source, range(30)))
        assert all(int(p.id) % 3 == 0 for p in source.held_out(10))


def test_nothing_to_train_on_is_an_error_and_does_not_search_for_ever() -> None:
    for source in (replay(), replay(50), drawn()):
        source.leave_out(lambda p: False, anything)
        with pytest.raises(UserError, match="train on"):
            source.train(0)

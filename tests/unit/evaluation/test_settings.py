from rlvr.evaluation.settings import EvaluationSettings


def test_all_examples_are_more_than_any_set_has() -> None:
    assert EvaluationSettings(num_examples=7).limit == 7
    assert EvaluationSettings(num_examples="all").limit >= 10**9

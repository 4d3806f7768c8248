import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr.rewards.official.gsm8k import INVALID, extract, is_correct
from tests.unit.rewards.official.rows import data_folder, read_gzip


@pytest.mark.parametrize(("split", "num_rows"), [("train", 7473), ("test", 923)])
def test_every_real_gold_is_correct_and_its_negative_is_not(split: str, num_rows: int) -> None:
    rows = read_gzip(data_folder() / "gsm8k" / f"{split}.jsonl.gz")
    assert len(rows) == num_rows
    for row in rows:
        gold = row["answer"]
        number = int(extract(gold))
        assert is_correct(gold, gold)
        assert not is_correct(f"#### {-number}", gold) or number == 0
        assert not is_correct(f"#### {number + 1}", gold)


@settings(deadline=None)
@given(st.text())
def test_any_text_is_extracted_or_invalid(text: str) -> None:
    found = extract(text)
    assert found == INVALID or (f"#### {found}"[:6] in text.replace(",", "") and "," not in found)


def test_a_gold_without_an_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="no line"):
        is_correct("#### 1", "1")

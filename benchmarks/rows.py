"""Loading speed of data files: rows of a file to the problems of a task.

    python benchmarks/rows.py [--num-rows 100000] [--repeats 3]

Rows per second of CPU time, the best of the repeats: texts and messages as JSON lines, Parquet with 64 and 32 bit
floats.
To compare two editions: `python benchmarks/editions.py BEFORE AFTER --only rows`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from rlvr.tasks.columns import Jsonl
from rlvr.tasks.loading import parse_rows

SOLUTION = "She sold {0} clips in April and half as many, {0} / 2, in May.\nThat makes {0} and a half of it.\n#### {0}"
ASKED = (
    "Natalia sold {0} clips to her friends in April, and then she sold half as many clips in May. How many clips did "
    'Natalia sell altogether in April and May? Think step by step, then write the answer after "####".'
)


def texts(number: int) -> dict[str, Any]:
    return {"question": ASKED.format(number), "answer": SOLUTION.format(number)}


def messages(number: int) -> dict[str, Any]:
    return {
        "data_source": "clips",
        "prompt": [{"role": "user", "content": ASKED.format(number)}],
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {"split": "train", "index": number},
    }


def jsonl(row: Callable[[int], dict[str, Any]], path: Path, num_rows: int) -> None:
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(num_rows)))


def parquet(width: pyarrow.DataType, path: Path, num_rows: int) -> None:
    golds = pyarrow.array([number / 10 for number in range(num_rows)], pyarrow.float64()).cast(width)
    asked = [ASKED.format(number) for number in range(num_rows)]
    pyarrow.parquet.write_table(pyarrow.table({"question": asked, "answer": golds}), path)


def rate(task: Jsonl, num_rows: int) -> float:
    begin = time.process_time()
    part = parse_rows(task.rows("path"), task.parse)
    seconds = time.process_time() - begin
    assert len(part.problems) == num_rows
    return num_rows / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the loading of data files.")
    parser.add_argument("--num-rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    given = {"question_field": "prompt", "answer_field": "reward_model.ground_truth"}
    cases: dict[str, tuple[str, Callable[[Path, int], None], dict[str, Any]]] = {
        "texts": ("jsonl", lambda path, num: jsonl(texts, path, num), {}),
        "messages": ("jsonl", lambda path, num: jsonl(messages, path, num), given),
        "64 bit": ("parquet", lambda path, num: parquet(pyarrow.float64(), path, num), {}),
        "32 bit": ("parquet", lambda path, num: parquet(pyarrow.float32(), path, num), {}),
    }
    print("| file | rows/s |\n|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, (ending, write, fields) in cases.items():
            path = Path(folder) / f"x.{ending}"
            write(path, args.num_rows)
            found = [rate(Jsonl(path=str(path), **fields), args.num_rows) for _ in range(args.repeats)]
            print(f"| {name} | {max(found):,.0f} |", flush=True)


if __name__ == "__main__":
    main()

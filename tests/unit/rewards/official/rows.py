"""Rows with the numbers of the official evaluators: self-made ones, and the real ones where RLVR_DATA says they are."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

FIXTURE = Path(__file__).parents[3] / "fixtures" / "scoring_rows.jsonl"


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def data_folder() -> Path:
    if "RLVR_DATA" not in os.environ:
        pytest.skip("RLVR_DATA is not set: the folder with the real data")
    return Path(os.environ["RLVR_DATA"])


def read_gzip(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode()
    return json.loads(text) if path.name.endswith(".json.gz") else [json.loads(line) for line in text.splitlines()]

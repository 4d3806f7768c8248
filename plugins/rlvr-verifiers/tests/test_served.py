"""`vf-eval`, the command of the verifiers library, against `rlvr serve`."""

import json
import subprocess
from pathlib import Path

import pytest

from test_runs import BIN, MUSIQUE, installed
from tests.conftest import LONG_S
from tests.system.served import served
from tests.unit.serve.chain import save_chain

COMPLETE = (
    '<tool_call>\n{"name": "complete", "arguments": {"reasoning": "So.", "final_answer": "x", "cited_doc_ids": ["1"]}}'
    "\n</tool_call>"
)


@pytest.mark.timeout(LONG_S)  # it waits for its turn
def test_vf_eval_plays_episodes_with_a_served_model(tmp_path: Path) -> None:
    arguments = {
        "retriever": "golden",
        "train_sets": str(MUSIQUE / "train.jsonl"),
        "eval_sets": str(MUSIQUE / "dev.jsonl"),
    }
    options = ["--served-model-name", "m", "--api-key", "a-secret"]
    with installed(tmp_path) as environment, served(str(save_chain(tmp_path / "chain", COMPLETE)), options) as server:
        command = [str(BIN / "vf-eval"), "vf-musique", "-m", "m", "-b", server.url, "-k", "SOME_KEY", "-n", "3"]
        command += ["-r", "2", "-a", json.dumps(arguments), "-s", "-d", "-o", str(tmp_path), "--disable-env-server"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr[-3000:]
    (results,) = tmp_path.rglob("results.jsonl")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(rows) == 6
    for row in rows:
        assert row["error"] is None
        assert row["stop_condition"] == "has_final_env_response"
        assert row["num_turns"] == 1.0

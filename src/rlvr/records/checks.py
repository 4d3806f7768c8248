"""What `rlvr doctor` and the like found about a run: beside the run, which is only read, for its report."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlvr.records.files import write_atomically

KINDS = ("doctor", "audit")


@dataclass(frozen=True, kw_only=True)
class Check:
    """`Check(name="one_bos", status="fail", says="...", evidence={"first_ids": [1, 1, 5]}, remedy="...")`"""

    status: Literal["ok", "fail", "notice", "skipped"]
    says: str
    evidence: Mapping[str, Any] = field(default_factory=dict)  # as JSON
    remedy: str = ""
    name: str = ""
    seconds: float = 0.0


def to_line(check: Check) -> str:
    return json.dumps(asdict(check), ensure_ascii=False, default=str) + "\n"


def checks_path(run: Path, kind: str) -> Path:
    """`runs/first.doctor.jsonl` of `runs/first`."""
    root = run.resolve()
    return root.with_name(f"{root.name}.{kind}.jsonl")


def write_checks(run: Path, kind: str, checks: Iterable[Check]) -> Path:
    """UserError if it cannot be written."""
    path = checks_path(run, kind)
    write_atomically(path, "".join(map(to_line, checks)).encode(errors="backslashreplace"))
    return path


def read_checks(run: Path, kind: str) -> list[Check]:
    """Empty without a file; ValueError if it is damaged."""
    path = checks_path(run, kind)
    if not path.is_file():
        return []
    try:
        return [Check(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged and left out ({error!r}).") from error

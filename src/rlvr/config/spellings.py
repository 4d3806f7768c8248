"""What other projects, and rlvr 0.1.0, call our keys: for docs/configuration.md and for the error that such a key gets.

The table is spellings.tsv.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """`theirs` is a last component or a dotted key; `ours` are keys of rlvr; `note` says how they differ."""

    project: str
    theirs: str
    ours: tuple[str, ...]
    note: str
    inside: bool  # so it is for every key inside `theirs`

    @property
    def translated(self) -> str:
        """What to say to somebody who used it."""
        if not self.ours:
            return f"is not a setting here; {self.note}."
        return f"the key is called {' and '.join(self.ours)} here{f' ({self.note})' if self.note else ''}."


@cache
def spellings() -> tuple[Spelling, ...]:
    """All of them, in the order of the table, where `# ` begins a project; the more special ones come first."""
    found, project = [], ""
    for line in (Path(__file__).parent / "spellings.tsv").read_text(encoding="utf-8").splitlines():
        theirs, ours, note = [*line.split("\t"), "", ""][:3]
        if line.startswith("#"):
            project = line.removeprefix("# ")
        else:
            one = {"theirs": theirs.rstrip("*"), "ours": tuple(ours.split()), "inside": theirs.endswith("*")}
            found.append(Spelling(project=project, note=note, **one))
    return tuple(found)


def find_spelling(key: str) -> Spelling | None:
    """The entry for a whole foreign key, for its last component, or for what it is inside of."""
    table = {one.theirs: one for one in reversed(spellings())}
    parts = key.split(".")
    tails = [".".join(parts[start:]) for start in range(len(parts))]
    found = next((table[tail] for tail in tails if tail in table), None)
    return found or next((table[part] for part in parts if part in table and table[part].inside), None)


def upgraded(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration of rlvr 0.1.0, where rewards had names and prompts had none, as one of today, in place."""
    prompt, algorithm, reward = (values.get(name) or {} for name in ("prompt", "algorithm", "reward"))
    if prompt:
        prompt.setdefault("name", "plain")
    if algorithm.get("train_on_tool_tokens") is False:
        del algorithm["train_on_tool_tokens"]
    if "name" in reward:
        kind, weights = reward.pop("name"), {"boxed": reward.pop("boxed_weight", 0.0)}
        weights["correct"] = reward.pop("correct_weight", 0.0)
        chosen = reward.pop("type", "combined")
        if kind == "rpn":
            weights = weights if chosen == "combined" else {name: float(name == chosen) for name in weights}
            reward["parts"] = {name: {"type": f"rpn_{name}", "weight": weight} for name, weight in weights.items()}
    for section, key in (("task", "parts"), ("evaluation", "also")):
        for bundle in ((values.get(section) or {}).get(key) or {}).values():
            upgraded(bundle)
    return values

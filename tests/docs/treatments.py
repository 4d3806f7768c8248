"""How each command line of the documentation is tried. `test_doc_commands` wants exactly one entry to fit each.

A new command in a page that fits none: add a line here, or make an existing pattern fit it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["train", "plain", "server", "request", "install", "elsewhere", "override", "launched"]


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """What is done with the commands whose text `pattern` matches as a whole.

    train      run here, with settings appended that make it short
    plain      run here as it stands, with fewer examples
    server     started in a process of its own; it ends with the page
    request    an HTTP request to a server that the page started before
    install    not run: the extras and files that it names exist
    elsewhere  run by the test named in `why`
    override   no command but a setting of one: composed with `more`
    launched   several processes of a command of ours: composed here, tests/system/test_distributed.py trains so
    """

    pattern: str
    kind: Kind
    pages: str = ".*"
    why: str = ""
    more: tuple[str, ...] = ()
    fill: Mapping[str, str] = field(default_factory=dict)  # placeholder -> a name in the folder that is prepared
    latest: str = "rpn"  # what runs/latest is: a prepared run
    code: int = 0
    says: str = ""  # on stderr
    needs: str = ""  # a library; without it the command says how to install it


OWN_TEST = {
    "docs/components.md": "tests/system/test_components_doc.py",
    "docs/own_files.md": "tests/system/test_components_doc.py",
    "docs/tools.md": "tests/system/test_tools_doc.py",
}
"""Pages that are executed whole, with their files and changes, by a test of their own."""

NO_TRAINING = r"--cfg job|--help|env_id=|task\.retriever=hybrid|report_to=\[\w| train\.|engine=vllm"

TREATMENTS = [
    Treatment(pattern=r".*", pages=r"docs/(components|own_files|tools)\.md", kind="elsewhere", why="OWN_TEST"),
    # ------------------------------------------------------------------------------------------------------- train
    Treatment(pattern=r"rlvr train(?=.* --cfg job).*", kind="plain"),
    Treatment(pattern=r"rlvr train .*(?<!\w)train\.\w+=.*", kind="plain", code=2, says="the key is called"),
    Treatment(
        pattern=rf"rlvr train(?!.*({NO_TRAINING})).*",
        kind="train",
    ),
    # tests/system/test_trackers.py runs trackers, which are extras: the settings are composed
    Treatment(
        pattern=r"rlvr train(?=.*tracker\.report_to=\[\w)(?!.*--cfg job).*",
        kind="plain",
        more=("--cfg", "job"),
    ),
    # without a server: the settings are composed
    Treatment(pattern=r"rlvr train(?=.*engine=vllm)(?!.*--cfg job).*", kind="plain", more=("--cfg", "job")),
    Treatment(pattern=r"(mlflow|wandb|tensorboard) .*", kind="elsewhere", why="tests/system/test_trackers.py"),
    # the semantic half of `hybrid` would load a model of the Hub: the settings are composed
    Treatment(pattern=r"rlvr train(?=.*task\.retriever=hybrid)(?!.*--cfg job).*", kind="plain", more=("--cfg", "job")),
    Treatment(
        pattern=r"rlvr train(?=.*env_id=)(?!.*--cfg job).*",
        kind="elsewhere",
        why="tests/system/test_verifiers.py",
    ),
    # ----------------------------------------------------------------------------------- eval, predict, score, retrieve
    Treatment(
        pattern=r"rlvr (eval|predict) (?!.*(--retriever|where p\d|openai:|--help)).*",
        pages=r"(?!docs/two_hop\.md).*",
        kind="plain",
    ),
    Treatment(pattern=r"rlvr (eval|predict) (?!.*--retriever).*where p\d.*", kind="plain", latest="two_hop"),
    Treatment(pattern=r"rlvr (eval|predict) (?=.*--retriever)(?!.*(openai:|--task)).*", kind="plain", latest="musique"),
    Treatment(
        pattern=r"rlvr (eval|predict) (?=.*--retriever)(?=.*--task)(?!.*openai:).*",
        kind="plain",
        latest="musique",
        more=("--set", "rollout.max_completion_tokens=32", "--set", "prompt.system='Answer with tools.'"),
    ),
    Treatment(pattern=r"rlvr (eval|predict) (?=.*openai:).*", kind="plain", needs="openai"),
    Treatment(pattern=r"rlvr score .*", kind="plain"),
    Treatment(pattern=r"rlvr retrieve (?!.*--serve).*", kind="plain", more=("--retriever", "bm25")),
    Treatment(pattern=r"rlvr retrieve (?=.*--serve).*", kind="server", more=("--retriever", "bm25")),
    # -------------------------------------------------------------------- benchmark, analyze, report, export, serve
    Treatment(pattern=r"rlvr (benchmark|analyze|report) (?!.*--retrievers).*", kind="plain"),
    Treatment(
        pattern=r"rlvr benchmark (?=.*--retrievers).*",
        kind="plain",
        latest="musique",
        more=("--set", "rollout.max_completion_tokens=32"),
    ),
    Treatment(pattern=r"rlvr export (?!.*(--merge|--push)).*", kind="plain", more=("--overwrite",)),
    Treatment(pattern=r"rlvr export (?=.*--merge)(?!.*--push).*", kind="plain", latest="lora", more=("--overwrite",)),
    Treatment(pattern=r"rlvr export (?=.*--push)(?=.*--dry-run).*", kind="plain", more=("--overwrite",)),
    Treatment(
        pattern=r"rlvr export (?=.*--push)(?!.*--dry-run).*", kind="plain", code=1, says="Hub", more=("--overwrite",)
    ),
    Treatment(pattern=r"rlvr serve (?!.*--engine vllm).*", kind="server"),
    Treatment(pattern=r"rlvr serve (?=.*--engine vllm).*", kind="elsewhere", why="tests/system/test_vllm.py"),
    Treatment(pattern=r"python -m vllm\..*", kind="elsewhere", why="tests/unit/app/test_vllm_server.py"),
    Treatment(pattern=r"curl .*", kind="request"),
    Treatment(pattern=r"rlvr( \w+)? --(help|version)", kind="plain"),
    Treatment(
        pattern=r"(srun .* )?(torchrun|accelerate launch|python -m torch\.distributed\.run) .*-m rlvr train.*",
        kind="launched",
    ),
    Treatment(pattern=r"'?task\.\w+=.*", kind="override", more=("--config-name", "musique")),
    # ------------------------------------------------------------------------------------------------ other programs
    Treatment(pattern=r"cat .*", kind="elsewhere", why="shows a file"),
    Treatment(pattern=r"export [A-Z_]+=.*", kind="elsewhere", why="sets a variable"),
    Treatment(pattern=r"pytest( .*)?", kind="elsewhere", why=".ci/run"),
    Treatment(pattern=r"(pip|python3 -m venv) .*|source .venv/bin/activate", kind="install"),
    Treatment(pattern=r"vf-install .*", kind="elsewhere", why="tests/system/test_verifiers.py"),
    Treatment(pattern=r"vf-eval .*", kind="elsewhere", why="tests/system/test_verifiers.py"),
    Treatment(pattern=r"python benchmarks/\w+\.py.*", kind="install"),
]

"""How each command line of the documentation is tried. `test_doc_commands` wants exactly one entry to fit each.

A new command in a page that fits none: add a line here, or make an existing pattern fit it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

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
    latest: str = "rpn"  # what runs/latest is: a prepared run
    code: int = 0
    says: str = ""  # on stderr
    needs: str = ""  # a library; without it the command says how to install it


def plain(pattern: str, *more: str, **changes: Any) -> Treatment:
    return Treatment(pattern=pattern, kind="plain", more=more, **changes)


def elsewhere(pattern: str, why: str, **changes: Any) -> Treatment:
    return Treatment(pattern=pattern, kind="elsewhere", why=why, **changes)


OWN_TEST = {
    "docs/components.md": "tests/system/test_components_doc.py",
    "docs/own_files.md": "tests/system/test_components_doc.py",
    "docs/tools.md": "tests/system/test_tools_doc.py",
}
"""Pages that are executed whole, with their files and changes, by a test of their own."""

NO_TRAINING = (
    r"smollm2|--cfg job|sweep\.trials|--prune-against|--help|env_id="
    r"|teacher=\W?openai:|task\.retriever=hybrid|report_to=\[\w| train\.|engine=vllm"
)

JOB = ("--cfg", "job")
SHORT = ("--set", "rollout.max_completion_tokens=32")
LAUNCHERS = r"(srun .* )?(torchrun|accelerate launch|python -m torch\.distributed\.run)"

TREATMENTS = [
    elsewhere(r"(?!rlvr .*smollm2).*", "OWN_TEST", pages=r"docs/(components|own_files|tools)\.md"),
    # pretrained weights, of packages that not every environment has
    elsewhere(r"rlvr (?=.*smollm2).*", "tests/system/test_real.py"),
    # train
    plain(r"rlvr train(?=.* --cfg job)(?!.*smollm2).*"),
    plain(r"rlvr train .*(?<!\w)train\.\w+=.*", code=2, says="the key is called"),
    Treatment(pattern=rf"rlvr train(?!.*({NO_TRAINING})).*", kind="train"),
    # composed only: trackers are extras (tests/system/test_trackers.py), vLLM a server, `hybrid` loads a Hub model
    plain(r"rlvr train(?=.*(tracker\.report_to=\[\w|engine=vllm|task\.retriever=hybrid))(?!.*--cfg job).*", *JOB),
    # composed only: each trial is a process (tests/system/test_search.py)
    plain(r"rlvr train(?=.*sweep\.trials)(?!.*--cfg job).*", *JOB, needs="optuna"),
    plain(r"rlvr train(?=.*--prune-against)(?!.*--cfg job).*", *JOB),
    elsewhere(r"(mlflow|wandb|tensorboard) .*", "tests/system/test_trackers.py"),
    elsewhere(r"rlvr train(?=.*env_id=)(?!.*--cfg job).*", "plugins/rlvr-verifiers/tests/test_runs.py"),
    elsewhere(r"rlvr train(?=.*teacher=\W?openai:).*", "tests/system/test_vllm.py"),
    plain(r"rlvr plan (?!.*gsm8k).*", "--seconds", "1"),
    plain(r"rlvr plan (?=.*gsm8k).*", "--seconds", "1", "rollout.max_completion_tokens=32"),
    plain(r"rlvr doctor runs/.*"),
    plain(r"rlvr doctor (?!smollm2).*--task gsm8k .*", code=1),  # its prompts do not fit into the small model's context
    plain(r"rlvr audit (?!my_rewards).*", "--seconds", "0", "--num-examples", "4"),
    plain(r"rlvr audit my_rewards.*", "--seconds", "0", "--num-examples", "4", code=1),
    # eval, predict, score, retrieve
    plain(
        r"rlvr (eval|predict) "
        r"(?!.*(smollm2|--retriever|where p\d|--few-shot|shuffled_supports|e1 w2|openai:|--help)).*",
    ),
    plain(r"rlvr (eval|predict) (?!.*--retriever).*where p\d.*", latest="two_hop"),
    plain(r"rlvr (eval|predict) .*(shuffled_supports|e1 w2).*", latest="meta"),
    plain(r"rlvr eval .*--few-shot.*", "--few-shot", "0,1", "--set", "rollout.max_completion_tokens=8"),
    plain(r"rlvr (eval|predict) (?=.*--retriever)(?!.*(openai:|--task)).*", latest="musique"),
    plain(
        r"rlvr (eval|predict) (?=.*--retriever)(?=.*--task)(?!.*openai:).*",
        *(*SHORT, "--set", "prompt.system='Answer with tools.'"),
        latest="musique",
    ),
    plain(r"rlvr (eval|predict) (?=.*openai:).*", needs="openai"),
    plain(r"rlvr score .*"),
    plain(r"rlvr retrieve (?!.*--(serve|decomposed)).*", "--retriever", "bm25"),
    elsewhere(r"rlvr retrieve .*--decomposed.*", "tests/unit/retrieval/test_decomposed.py"),  # no such file is ours
    Treatment(pattern=r"rlvr retrieve (?=.*--serve).*", kind="server", more=("--retriever", "bm25")),
    # benchmark, analyze, report, export, serve
    plain(r"rlvr replay .*", "--step", "2"),  # the last one counts
    plain(r"rlvr diagnose .*", code=1, says="of the 5 steps or more that a curve needs"),
    plain(r"rlvr explain .*", "--step", "2", "--episodes", "8"),
    plain(r"rlvr (benchmark|analyze|report) (?!.*(--retrievers|--live)).*"),
    elsewhere(r"rlvr report --live .*", "tests/system/test_report_live.py"),
    plain(r"rlvr runs.*"),
    plain(r"rlvr benchmark (?=.*--retrievers).*", *SHORT, latest="musique"),
    plain(r"rlvr export (?!.*(--merge|--push)).*", "--overwrite"),
    plain(r"rlvr export (?=.*--merge)(?!.*--push).*", "--overwrite", latest="lora"),
    plain(r"rlvr export (?=.*--push)(?=.*--dry-run).*", "--overwrite"),
    plain(r"rlvr export (?=.*--push)(?!.*--dry-run).*", "--overwrite", code=1, says="Hub"),
    Treatment(pattern=r"rlvr serve (?!.*--engine vllm).*", kind="server"),
    elsewhere(r"rlvr serve (?=.*--engine vllm).*", "tests/system/test_vllm.py"),
    elsewhere(r"python -m vllm\..*", "tests/unit/commands/test_vllm_server.py"),
    Treatment(pattern=r"curl .*", kind="request"),
    plain(r"rlvr( \w+)? --(help|version)"),
    Treatment(pattern=rf"{LAUNCHERS} .*-m rlvr train.*", kind="launched"),
    Treatment(pattern=r"'?task\.\w+=.*", kind="override", more=("--config-name", "musique")),
    # other programs
    elsewhere(r"cat .*", "shows a file"),
    elsewhere(r"export [A-Z_]+=.*", "sets a variable"),
    elsewhere(r"pytest( .*)?", ".ci/run"),
    elsewhere(r"vf-(install|eval) .*", "plugins/rlvr-verifiers/tests/test_runs.py"),
    Treatment(pattern=r"(pip|python3 -m venv) .*|source .venv/bin/activate", kind="install"),
    Treatment(pattern=r"python benchmarks/\w+\.py.*", kind="install"),
]

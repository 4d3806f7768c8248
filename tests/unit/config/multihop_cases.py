"""Overrides that break a rule of the multi-hop tasks, and a piece of what is said."""

_HF = "model=hf model.name_or_path=x"
_QA = f"task=musique {_HF}"
_CORPUS = "task.retrieval.scope=corpus task.retrieval.corpus=c.jsonl"

BROKEN = {
    "task=musique": "task=musique: models made from scratch cannot call its tools; choose model=hf",
    "task=wiki2 model=scratch_bpe": "task=wiki2: models made from scratch cannot call its tools",
    f"{_QA} reward=rpn": "reward: task=musique cannot be scored by this reward",
    f"task=gsm8k {_HF} reward=musique prompt=boxed": "score the tasks musique, hotpotqa and wiki2, not task=gsm8k",
    f"{_QA} task.tools=[complete,complete]": "task.tools: must name at least one tool, and none twice",
    f"{_QA} task.tools=[] prompt=boxed": "task.tools: must name at least one tool",
    f"{_QA} task.tools=[retrieve_documents]": "prompt.answer_in=complete: is complete if and only if task.tools has",
    f"{_QA} prompt=musique_tags": "prompt.answer_in=solution: is complete if and only if task.tools has complete",
    f"task=gsm8k {_HF} reward=numeric prompt=musique": "prompt.answer_in=complete: task=gsm8k has no tool complete",
    f"{_QA} prompt.few_shot=1": "prompt.few_shot=1: task=musique has tools",
    f"{_QA} prompt.tool_format=words": "prompt.tool_format=words: task=musique has tools whose arguments",
    f"{_QA} {_CORPUS} prompt.user='{{question}}{{documents}}'": "prompt.user: {documents} lists the question's own",
    f"{_QA} task.top_n=6": "task.top_n=6: is more than task.max_top_n=5; lower it",
    f"{_QA} task.hops=[2,2]": "task.hops: must name at least one number of hops, and none twice",
    f"{_QA} task.hops=[3] task.curriculum=hops": "task.curriculum=hops: has no effect with one number of hops",
    f"{_QA} task.retrieval.scope=corpus": "needs a file of passages with task.retriever=bm25; set task",
    f"{_QA} {_CORPUS} task.retriever=rerank": "task.retriever=rerank: orders the question's own paragraphs",
    f"{_QA} task.retriever=search": "task.retriever=search: the service has documents of its own",
    f"{_QA} task.retriever=rerank task.tool_timeout_s=41": "task.tool_timeout_s=41: a service that is down must end",
    f"{_QA} task.retriever=golden task.top_n=3": "task.top_n=3: has no effect with task.retriever=golden",
    f"{_QA} task.retriever=semantic task.retrieval.stem=false": "task.retrieval.stem=false: has no effect with",
    f"{_QA} task.retrieval.rerank_url=u": "task.retrieval.rerank_url=u: has no effect with task.retriever=bm25; set",
    f"{_QA} task.retrieval.search_url=u": "task.retrieval.search_url=u: has no effect with task.retriever=bm25; set",
    f"{_QA} task.retrieval.max_retries=1": "task.retrieval.max_retries=1: has no effect with task.retriever=bm25",
    f"{_QA} task.retrieval.corpus=c.jsonl": "task.retrieval.corpus=c.jsonl: has no effect with task.retrieval",
    f"{_QA} task.retriever=search task.retrieval.scope=corpus task.retrieval.index_dir=d": (
        "task.retrieval.index_dir=d: has no effect without task.retrieval.corpus"
    ),
    f"{_QA} {_CORPUS} task.noise_rate=0.5": "task.noise_rate=0.5: has no effect with task.retrieval.scope=corpus",
    f"{_QA} task.tools=[complete,get_document] task.max_top_n=9": "task.max_top_n=9: has no effect where task",
    f"{_QA} task.progress_coef=0.5": "task.progress_coef: shapes the reward of each turn, and algorithm=grpo gives",
    f"task=mix task.parts={{musique:{{set:['task.progress_coef=1']}}}} {_HF}": "and algorithm=grpo gives all tokens",
    f"task=gsm8k {_HF} evaluation.also={{musique:{{set:['task.progress_coef=1']}}}}": "evaluation.also: task.progress",
}

SILENT = (
    _QA,
    f"{_QA} task.progress_coef=0.5 algorithm=ppo",
    f"{_QA} task.progress_coef=0.5 algorithm=reinforce_pp",
    f"{_QA} task.retriever=rerank task.retrieval.rerank_url=u task.retrieval.max_retries=1 task.tool_timeout_s=30",
    f"{_QA} {_CORPUS} task.retriever=hybrid task.retrieval.stem=false task.retrieval.index_dir=d",
    f"{_QA} task.retriever=search task.retrieval.scope=corpus task.retrieval.search_url=u",
    f"{_QA} prompt=musique_tags task.tools=[retrieve_documents,get_document]",
    f"{_QA} task.hops=[2,3] task.curriculum=hops task.eval_order=balanced",
    f"{_QA} reward=musique_spec reward.parts.em.weight=0.5",
    f"task=gsm8k {_HF} evaluation.also=[musique,hotpotqa,wiki2]",
)

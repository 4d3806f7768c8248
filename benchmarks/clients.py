"""Clients that other people wrote, against `rlvr serve`: what works, call by call.

    python -m venv clients
    clients/bin/pip install lm_eval[api]==0.4.13 langchain-openai litellm inspect_ai openai torch
    clients/bin/python benchmarks/clients.py --rlvr rlvr [--only openai,lm_eval,langchain,litellm,inspect_ai]

The model is made on the spot: Qwen2's architecture, random weights, a byte-level tokenizer, a chat template. lm_eval's
numbers are compared with those of its own `hf` backend on the same folder. Prints a line for each call that fails, and
a table.
"""

# pyright: reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportOptionalMemberAccess=false, reportIndexIssue=false
from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "unused", "DO_NOT_TRACK": "1"}

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SCHEMA = {
    "type": "object",
    "title": "City",
    "description": "A city.",
    "properties": {"name": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "city", "description": "A city.", "parameters": SCHEMA}}
HELLO = [{"role": "user", "content": "Name a city."}]
Call = Callable[[], Any]


def make_model(folder: Path) -> Path:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    bpe.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    special, alphabet = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(
        [f"What is {a} plus {b}? The answer is {a + b}." for a in range(40) for b in range(40)], trainer
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@contextmanager
def served(rlvr: str, model: Path) -> Iterator[str]:
    """The address of the endpoint."""
    command = [rlvr, "serve", str(model), "--port", "0", "--served-model-name", "m"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def has(schema_of: Any) -> None:
    """Check that it is an object of SCHEMA."""
    found = schema_of if isinstance(schema_of, dict) else json.loads(schema_of)
    assert {*found} == {"name", "size"}, found


def openai_calls(url: str) -> dict[str, Call]:
    from openai import OpenAI
    from pydantic import BaseModel, ConfigDict

    class City(BaseModel):
        model_config = ConfigDict(extra="forbid")
        name: str
        size: str

    client = OpenAI(base_url=url, max_retries=0)
    chat, text, make = client.chat.completions, client.completions, client.responses

    def said(**more: Any) -> str:
        answer = chat.create(model="m", messages=HELLO, **({"max_tokens": 60, "seed": 1} | more))  # type: ignore[arg-type]
        return answer.choices[0].message.content or ""

    def called(**more: Any) -> str:
        answer = chat.create(model="m", messages=HELLO, tools=[TOOL], max_tokens=200, **more)  # type: ignore[arg-type]
        (call,) = answer.choices[0].message.tool_calls
        assert call.type == "function"
        return call.function.arguments

    def scored(**more: Any) -> None:
        found = text.create(model="m", prompt="What is 1 plus", echo=True, logprobs=2, **more).choices[0].logprobs
        assert found is not None
        assert found.token_logprobs is not None
        assert found.token_logprobs[0] is None

    def responded(**more: Any) -> Any:
        return make.create(model="m", input="Name a city.", max_output_tokens=200, **more)

    one, form = {"type": "function", "function": {"name": "city"}}, {"name": "city", "schema": SCHEMA, "strict": True}
    settings: list[dict[str, Any]] = [
        *({"temperature": value} for value in (0, 0.7, 2)),
        *({"top_p": value} for value in (0.1, 1)),
        *({"n": value} for value in (1, 3)),
        {"stop": "a"},
        {"stop": ["a", "b"]},
        {"logprobs": True, "top_logprobs": 5},
        {"max_completion_tokens": 5, "max_tokens": None},
        *({name: 0} for name in ("presence_penalty", "frequency_penalty")),
        {"user": "me"},
        {"metadata": {"a": "b"}},
        {"store": True},
        {"logit_bias": {}},
        {"service_tier": "auto"},
        *({"reasoning_effort": value} for value in ("minimal", "low", "high")),
        {"verbosity": "low"},
        {"parallel_tool_calls": False},
        {"response_format": {"type": "text"}},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [TOOL], "tool_choice": "auto"},
        *({"extra_body": {"skip_special_tokens": value}} for value in (True, False)),
        {"extra_body": {"chat_template_kwargs": {}}},
        {"extra_body": {"top_k": 5, "min_p": 0.1}},
        {"extra_body": {"return_token_ids": True}},
        {"prompt_cache_key": "x"},
        {"safety_identifier": "x"},
    ]
    calls: dict[str, Call] = {f"chat {json.dumps(one)}": lambda one=one: said(**one) for one in settings}
    prompts: list[Any] = ["What is", [40, 41, 42], ["What is", "One"], [[40, 41], [42]]]
    calls |= {
        f"completions {json.dumps(prompt)}": lambda prompt=prompt: text.create(model="m", prompt=prompt)
        for prompt in prompts
    }
    return calls | {
        "models": client.models.list,
        "a model": lambda: client.models.retrieve("m"),
        "completions, echo and logprobs": lambda: scored(max_tokens=1),
        "completions, echo alone": lambda: scored(max_tokens=0),
        "completions, stream": lambda: list(text.create(model="m", prompt="One", stream=True)),
        "chat, stream": lambda: list(chat.create(model="m", messages=HELLO, max_tokens=9, stream=True)),  # type: ignore[arg-type]
        "chat, a list of parts": lambda: chat.create(
            model="m", messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], max_tokens=5
        ),
        "chat, JSON mode": lambda: said(response_format={"type": "json_object"}),
        "chat, JSON schema": lambda: has(said(response_format={"type": "json_schema", "json_schema": form})),
        "chat, parse": lambda: client.chat.completions.parse(
            model="m",
            messages=HELLO,
            response_format=City,
            max_tokens=900,  # type: ignore[arg-type]
        ),
        "chat, a tool by name": lambda: has(called(tool_choice=one)),
        "chat, a tool required": lambda: has(called(tool_choice="required")),
        "responses": lambda: responded().output_text,
        "responses, instructions": lambda: responded(instructions="Be brief."),
        "responses, JSON schema": lambda: has(responded(text={"format": {"type": "json_schema", **form}}).output_text),
        "responses, a tool": lambda: has(
            responded(tools=[{"type": "function", **TOOL["function"], "strict": True}], tool_choice="required")
            .output[0]
            .arguments
        ),
    }


def langchain_calls(url: str) -> dict[str, Call]:
    from langchain_openai import ChatOpenAI

    def structured(method: str) -> None:
        model = ChatOpenAI(model="m", base_url=url, max_completion_tokens=300, max_retries=0)
        has(model.with_structured_output(SCHEMA, method=method).invoke("Name a city, as JSON."))  # type: ignore[arg-type]

    def plain() -> None:
        answer = ChatOpenAI(model="m", base_url=url, max_completion_tokens=300).bind(
            response_format={"type": "json_object"}
        )
        assert isinstance(answer.invoke("Name a city, as JSON.").content, str)

    return {
        "with_structured_output, json_schema": lambda: structured("json_schema"),
        "with_structured_output, function_calling": lambda: structured("function_calling"),
        "JSON mode": plain,
        "stream": lambda: list(ChatOpenAI(model="m", base_url=url, max_completion_tokens=9).stream("Hi")),
    }


def litellm_calls(url: str) -> dict[str, Call]:
    import litellm

    def ask(**more: Any) -> Any:
        return litellm.completion(model="openai/m", api_base=url, messages=HELLO, **({"max_tokens": 200} | more))

    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    return {
        "completion": ask,
        "stream": lambda: list(ask(stream=True)),
        "JSON schema": lambda: has(ask(response_format=form).choices[0].message.content),
        "a tool": lambda: has(
            ask(tools=[TOOL], tool_choice="required").choices[0].message.tool_calls[0].function.arguments
        ),
        "text_completion": lambda: litellm.text_completion(
            model="text-completion-openai/m", api_base=url, prompt="What is", max_tokens=5
        ),
    }


def inspect_calls(url: str) -> dict[str, Call]:
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    def run(**settings: Any) -> None:
        samples = [Sample(input=f"What is {n} plus 1?", target=str(n + 1)) for n in range(4)]
        task = Task(dataset=samples, solver=generate(), scorer=includes())
        with tempfile.TemporaryDirectory() as logs:
            (log,) = eval(task, model="openai-api/own/m", model_base_url=url, log_dir=logs, display="none", **settings)
        assert log.status == "success", log.error

    os.environ |= {"OWN_API_KEY": "unused", "OWN_BASE_URL": url}
    return {
        "eval": lambda: run(max_tokens=8),
        "eval, epochs": lambda: run(max_tokens=8, epochs=2),
        "eval, temperature, seed, top_p": lambda: run(max_tokens=8, temperature=0.5, seed=1, top_p=0.9),
        "eval, logprobs": lambda: run(max_tokens=8, logprobs=True, top_logprobs=2),
        "eval, stop_seqs": lambda: run(max_tokens=8, stop_seqs=["a"]),
    }


TASKS = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_choice": ["two", "three", "four"],
        "doc_to_target": "{{n % 3}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "last_word": {
        "output_type": "loglikelihood",
        "doc_to_target": " {{n + 1}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "What is {{n}} plus 1? The answer is {{n + 1}}.",
        "metric_list": [{"metric": "bits_per_byte"}, {"metric": "word_perplexity"}],
    },
    **{
        name: {
            "output_type": "generate_until",
            "doc_to_target": "{{n + 1}}",
            "generation_kwargs": {"max_gen_toks": 12, "do_sample": False, **more},
            "metric_list": [{"metric": "exact_match"}],
        }
        for name, more in {
            "until_line": {"until": ["\n"]},
            "until_words": {"until": ["the", "is"]},
            "until_end": {"until": []},
        }.items()
    },
}
SAME = 1e-4


def lm_eval_calls(url: str, model: Path) -> dict[str, Call]:
    """Each task through the endpoint and with `hf`: the model's answers, not only the scores, must be the same."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    folder = model.parent / "tasks"
    folder.mkdir()
    (folder / "rows.json").write_text(json.dumps([{"n": n} for n in range(12)]))
    for name, task in TASKS.items():
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": str(folder / "rows.json")}}
        about = {"task": f"own_{name}", **data, "test_split": "train", "doc_to_text": "What is {{n}} plus 1?", **task}
        (folder / f"{name}.yaml").write_text(json.dumps(about))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    ours = {"model": "m", "base_url": f"{url}/completions", "tokenizer": str(model), "max_length": 2048}

    def answers(name: str, kind: str, arguments: dict[str, Any]) -> list[Any]:
        found = lm_eval.simple_evaluate(
            model=kind, model_args=arguments, tasks=[f"own_{name}"], task_manager=manager, bootstrap_iters=0
        )
        assert found is not None
        return [reply for sample in found["samples"][f"own_{name}"] for reply in sample["filtered_resps"]]

    def compare(name: str) -> None:
        theirs = {"pretrained": str(model), "device": "cpu", "dtype": "float32", "max_length": 2048}
        pairs = list(zip(answers(name, "local-completions", ours), answers(name, "hf", theirs), strict=True))
        assert pairs
        for one, other in pairs:
            if isinstance(one, str):
                assert one == other, (one, other)
                continue
            one, other = (x if isinstance(x, tuple | list) else (x,) for x in (one, other))
            assert abs(one[0] - other[0]) <= SAME, (one, other)
            assert one[1:] == other[1:], (one, other)

    return {f"{TASKS[name]['output_type']}: {name}": lambda name=name: compare(name) for name in TASKS}


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rlvr", default="rlvr", help="the command (default: rlvr)")
    parser.add_argument("--only", default="openai,lm_eval,langchain,litellm,inspect_ai")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder) / "model")
        with served(args.rlvr, model) as url:
            makers: dict[str, tuple[str, Callable[[], dict[str, Call]]]] = {
                "openai": ("openai", lambda: openai_calls(url)),
                "lm_eval": ("lm_eval", lambda: lm_eval_calls(url, model)),
                "langchain": ("langchain-openai", lambda: langchain_calls(url)),
                "litellm": ("litellm", lambda: litellm_calls(url)),
                "inspect_ai": ("inspect_ai", lambda: inspect_calls(url)),
            }
            for name in args.only.split(","):
                package, make = makers[name]
                calls, fine = make(), 0
                for what, call in calls.items():
                    try:
                        call()
                        fine += 1
                    except Exception as error:
                        print(f"{name}, {what}: {type(error).__name__}: {str(error)[:300]}")
                rows.append(f"| {package} {importlib.metadata.version(package)} | {fine} of {len(calls)} |")
    print("\n| client | calls that work |\n|---|---|")
    print(*rows, sep="\n")
    print(f"\n{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}")


if __name__ == "__main__":
    main()

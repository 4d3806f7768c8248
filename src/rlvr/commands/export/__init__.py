"""`rlvr export`: a run's model as a Hub folder with a model card."""

import argparse
import json
from pathlib import Path

from rlvr import imports
from rlvr.cli.model_arguments import add_config_dir, at_least, hush, note
from rlvr.errors import ConfigError

HELP = "export a model for the Hub"
DESCRIPTION = """Export a run's model in Hub format: safetensors weights, tokenizer, the run's configuration, and a
model card with scores and intervals. transformers loads it without rlvr. A LoRA run exports its adapter; --merge merges
it into the base model. --push uploads the folder to the Hub, into a private repository."""
EXAMPLE = """examples:
  rlvr export runs/latest                                        into runs/latest/export
  rlvr export runs/latest/checkpoints/step_000050 --output best  one checkpoint
  rlvr export runs/latest --merge --dtype bfloat16               LoRA merged into its base model
  rlvr export runs/latest --push ann/rpn-grpo --dry-run          what would go to the Hub, and where
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="run folder, or one of its checkpoints")
    add_config_dir(parser)
    parser.add_argument("--output", metavar="FOLDER", help="folder to make (default: RUN/export)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    parser.add_argument("--merge", action="store_true", help="merge the LoRA adapter into its base model, in float32")
    parser.add_argument(
        "--dtype",
        choices=["float32", "bfloat16", "float16"],
        help="dtype of the weights (default: as in the run; merged: float32)",
    )
    parser.add_argument("--base-model", metavar="HUB_ID", help="Hub id of the model that training started from")
    parser.add_argument("--license", metavar="ID", help="license of the weights, e.g. apache-2.0 (default: left open)")
    parser.add_argument(
        "--samples",
        type=at_least(0),
        metavar="N",
        help="training completions to show in the card (default: 1 if the task generates its examples, else 0)",
    )
    parser.add_argument("--push", metavar="REPO", help="upload to owner/name on the Hub; private unless --public")
    parser.add_argument("--public", action="store_true", help="make the repository created by --push public")
    parser.add_argument("--dry-run", action="store_true", help="only list files and sizes; write and upload nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON line on stdout")


def run(args: argparse.Namespace) -> int:
    from rlvr.commands.export.body import ExportOptions, check_repository, check_token, export, find_source, push

    if args.public and not args.push:
        raise ConfigError("--public: nothing is uploaded; add --push owner/name, or leave this out.")
    if args.push:
        check_repository(args.push)
        if not args.dry_run:
            check_token()
    imports.look_in(args.config_dir)
    source = find_source(args.run_folder)
    if not source.is_final:
        note(f"no final model: {source.weights} (step {source.step}) is exported")
    run_folder = Path(args.run_folder)  # keep runs/latest as the user wrote it
    inside = (run_folder if run_folder.absolute() == source.root else source.root) / "export"
    target = Path(args.output or inside)
    name = args.push or _relative(target)
    options = ExportOptions(
        merge=args.merge,
        dtype=args.dtype,
        base_model=args.base_model,
        license=args.license,
        num_samples=args.samples,
        is_pushed=bool(args.push),
        name=name,
        title=name.rpartition("/")[2] if args.push or args.output else source.root.resolve().name,
    )
    hush()
    kind, files = export(source, options, target, overwrite=args.overwrite, dry_run=args.dry_run, note=note)
    url = None
    if args.push and not args.dry_run:
        url = push(target, files, args.push, public=args.public, message=f"rlvr export, step {source.step}")
    if args.json:
        line = {"folder": str(target), "kind": kind, "step": source.step, "files": files}
        print(json.dumps(line | {"repository": args.push, "url": url, "dry_run": args.dry_run}))
        return 0
    for file, size in files.items():
        print(f"{size:>15,}  {file}")
    print(f"{sum(files.values()):>15,}  bytes in {len(files)} files")
    if args.push and args.license is None:
        note("no license was chosen: add --license ID, or write it into the card")
    if args.dry_run:
        where = f" and uploaded to the {'public' if args.public else 'private'} repository {args.push}"
        print(f"would be written to {target}" + (where if args.push else ""))
    else:
        print(f"{kind} model of step {source.step}: {target}")
        if url is not None:
            print(f"uploaded to {url}")
    return 0


def _relative(path: Path) -> str:
    """The path relative to here; elsewhere only its last part: readers of the card lack this machine's folders."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name

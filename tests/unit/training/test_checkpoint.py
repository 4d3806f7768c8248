"""Complete or absent, verified on reading, and bit for bit what was saved."""

import json
import os
from pathlib import Path

import pytest
import torch

from rlvr.errors import UserError
from rlvr.training.checkpoint import (
    Contents,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    prune,
    save_checkpoint,
)
from tests.system.harness import Command


def write_model(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")


def save(folder: Path, step: int) -> Path:
    tensors = {"moment": torch.arange(4.0) + step, "count": torch.tensor(step)}
    return save_checkpoint(folder, step, Contents(save_model=write_model, tensors=tensors, state={"cursor": step}))


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    shared = torch.randn(3, 4)
    tensors = {
        "float": torch.tensor([0.1, float("nan"), float("-inf")]),
        "bf16": torch.randn(5).bfloat16(),
        "bytes": torch.get_rng_state(),
        "transposed": shared.T,
        "shared": shared,
        "the same memory": shared,
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0),
    }
    contents = Contents(save_model=write_model, tensors=tensors, state={"a": [1, {"b": None}]})
    path = save_checkpoint(tmp_path, 12, contents)
    loaded = load_checkpoint(path)
    assert (path.name, loaded.step, loaded.state) == ("step_000012", 12, {"a": [1, {"b": None}]})
    assert (loaded.model_path / "model.safetensors").read_bytes() == b"weights"
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        one, two = (x.contiguous().reshape(-1).view(torch.uint8) for x in (loaded.tensors[name], tensor))
        assert torch.equal(one, two)
    assert entries(tmp_path) == ["step_000012"]
    assert {file.suffix for file in path.rglob("*") if file.is_file()} == {
        ".json",
        ".safetensors",
    }  # nothing is pickled


def test_the_newest_is_found_by_number_not_by_name(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "absent") is None
    assert latest_checkpoint(tmp_path) is None
    for step in (999_999, 1_000_000, 20):
        save(tmp_path, step)
    (tmp_path / "step_000004").write_text("a file")
    (tmp_path / "step_5").mkdir()
    assert list(list_checkpoints(tmp_path)) == [20, 999_999, 1_000_000]
    assert latest_checkpoint(tmp_path) == tmp_path / "step_1000000"


def test_pitfall_37_leftovers_of_a_killed_process_are_cleaned_up(tmp_path: Path) -> None:
    save(tmp_path, 5)
    save(tmp_path, 10).rename(tmp_path / ".step_000010.old-77")  # killed between the two renames
    save(tmp_path, 5).rename(tmp_path / ".step_000005.old-77")  # killed after them
    save(tmp_path, 5)
    (tmp_path / ".step_000015.tmp-77").mkdir()
    (tmp_path / ".step_000015.tmp-77" / "half").write_bytes(b"x")
    assert load_checkpoint(latest_checkpoint(tmp_path)).step == 10
    assert entries(tmp_path) == ["step_000005", "step_000010"]


FILES = ["manifest.json", "state.json", "tensors.safetensors", "model/model.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named_with_the_remedy(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 50)
    (path / name).unlink()
    with pytest.raises(UserError, match=rf"{name} is missing or was changed; delete that folder, and the run"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 50)
    data = (path / name).read_bytes()
    whitespace = {i for i, byte in enumerate(data) if name == "manifest.json" and byte in b" \n"}
    for index in sorted(set(range(0, len(data), 7)) - whitespace):
        (path / name).write_bytes(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])
        with pytest.raises(UserError, match=r"is damaged|has format"):
            load_checkpoint(path)
    (path / name).write_bytes(data)
    assert load_checkpoint(path).step == 50


@pytest.mark.parametrize("text", ["[]", '{"format": 1}', '{"format": 1, "step": 50, "files": {}}', "\x00", None])
def test_a_strange_manifest_is_a_sentence(tmp_path: Path, text: str | None) -> None:
    manifest = save(tmp_path, 50) / "manifest.json"
    said = r"manifest\.json .*; delete that folder"
    if text is None:  # another format is not called damage
        text = json.dumps(json.loads(manifest.read_text()) | {"format": 4})
        said = "has format 4, this version of rlvr reads formats 1 to 3"
    manifest.write_text(text)
    with pytest.raises(UserError, match=said):
        load_checkpoint(manifest.parent)


def test_an_error_in_the_middle_of_a_save_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        write_model(folder)
        raise KeyboardInterrupt

    save(tmp_path, 5)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 10, Contents(save_model=fail, tensors={}, state={}))
    assert entries(tmp_path) == ["step_000005"]


FULL_DISK = """
import resource
from pathlib import Path
import torch
from rlvr.errors import UserError
from rlvr.training.checkpoint import Contents, latest_checkpoint, load_checkpoint, save_checkpoint

folder = Path(FOLDER)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

def save(step, numbers):
    save_model = lambda path: path.joinpath("config.json").write_text("{}")
    save_checkpoint(folder, step, Contents(save_model=save_model, tensors={"a": torch.ones(numbers)}, state={}))

save(5, 1000)
try:
    save(10, 1_000_000)
except UserError as error:
    print(error)
print(load_checkpoint(latest_checkpoint(folder)).step, sorted(path.name for path in folder.iterdir()))
"""


def printed(code: str, folder: Path) -> str:
    """What a script says in a process of its own; FOLDER in it is `c` in the folder."""
    script, out, log = (folder / name for name in ("script.py", "out", "log"))
    script.write_text(code.replace("FOLDER", repr(str(folder / "c"))))
    command = Command(script=script, out=out, log=log)
    assert command.wait() == 0, command.err
    return out.read_text()


@pytest.mark.slow
def test_a_file_size_limit_leaves_the_last_checkpoint_whole(tmp_path: Path) -> None:
    lines = printed(FULL_DISK, tmp_path).splitlines()
    assert lines[0].startswith(f"Cannot write {tmp_path / 'c' / 'step_000010'}: the file would exceed the limit")
    assert lines[1:] == ["5 ['step_000005']"]


def test_pitfall_37_files_are_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the syncs a power cut can leave the new name on files that are still empty."""
    events: list[str] = []
    sync, rename = os.fsync, Path.rename

    def recorded_sync(number: int) -> None:
        inode = os.fstat(number).st_ino
        (path,) = [path for path in (tmp_path, *tmp_path.rglob("*")) if path.stat().st_ino == inode]
        events.append(path.relative_to(tmp_path).as_posix())
        sync(number)

    def recorded_rename(path: Path, target: Path) -> Path:
        events.append(f"{path.name} -> {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(Path, "rename", recorded_rename)
    save(tmp_path, 3)
    temporary = f".step_000003.tmp-{os.getpid()}"
    at = events.index(f"{temporary} -> step_000003")
    inside = ["manifest.json", "model", "model/model.safetensors", "state.json", "tensors.safetensors"]
    assert sorted(events[:at]) == [temporary, *(f"{temporary}/{name}" for name in inside)]
    assert events[at + 1 :] == ["."]  # and the name itself


# One process imports torch once and forks children that save and prune. A child is killed, and every checkpoint that is
# then on the disk must be whole, the newest one usable, and nothing half left after the clean-up.
CHILDREN = """
import os, resource, shutil, signal, sys
from pathlib import Path
import torch
from rlvr.training.checkpoint import (
    Contents, latest_checkpoint, list_checkpoints, load_checkpoint, prune, save_checkpoint
)

root = Path(FOLDER)

def save(folder, step):
    def save_model(path):
        path.joinpath("a").write_bytes(bytes(20))
        path.joinpath("b").write_bytes(bytes(60))
    tensors = {"a": torch.full((10,), float(step))}
    state = {"step": step, "more": "x" * 200}
    save_checkpoint(folder, step, Contents(save_model=save_model, tensors=tensors, state=state))

def check(folder, at_least):
    leftovers = any(path.name.startswith(".") for path in folder.iterdir())
    found = [load_checkpoint(path) for path in list_checkpoints(folder).values()]
    assert all(c.state["step"] == c.step and bool((c.tensors["a"] == c.step).all()) for c in found), found
    newest = load_checkpoint(latest_checkpoint(folder)).step
    assert newest >= at_least, (newest, at_least)
    assert not any(path.name.startswith(".") for path in folder.iterdir())
    return newest, leftovers

def ended_by_itself(child):
    status = os.waitpid(child, 0)[1]
    assert status == 0 or os.WIFSIGNALED(status), status
    return status == 0
"""

# Python announces every file that it writes, renames or removes to an audit hook: killed before the first of these
# moments, then before the second, ... until the child lives to the end.
KILLED_EVERYWHERE = """
count = 0

def kill_at(moment):
    def hook(event, arguments):
        global count
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes or event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod"):
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

for step in (1, 2):
    save(root / "base", step)
moment, leftovers = 0, 0
while True:
    moment += 1
    folder = root / f"after_{moment}"
    shutil.copytree(root / "base", folder)
    child = os.fork()
    if child == 0:
        kill_at(moment)
        save(folder, 3)
        save(folder, 3)  # replaces itself
        prune(folder, 1)
        os._exit(0)
    lived = ended_by_itself(child)
    newest, left = check(folder, at_least=2)
    leftovers += left
    shutil.rmtree(folder)
    if lived:
        break
print(moment, leftovers, newest)
"""

# The same inside of every write: the system kills a process (SIGXFSZ) that writes past its limit on file sizes, once
# the bytes up to the limit are on the disk. The files of a checkpoint grow in the order in which they are written, so
# the rising limit cuts through each of them in turn. The next child goes on in the same folder.
KILLED_INSIDE_A_WRITE = """
def cut_writes_at(size):
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

folder = root / "c"
for step in (1, 2):
    save(folder, step)
limit, step, cut, lived = 1, 2, set(), False
while not lived:
    child = os.fork()
    if child == 0:
        cut_writes_at(limit)
        save(folder, step + 1)
        prune(folder, 2)
        os._exit(0)
    lived = ended_by_itself(child)
    sizes = [path.stat().st_size for path in folder.glob(".*/**/*") if path.is_file()]
    # safetensors asks for the whole size at once and is refused: its file stays empty, the others are full to the limit
    assert lived or max(sizes) == limit or min(sizes) == 0, (limit, sizes)
    cut.add(len(sizes))
    step, _ = check(folder, at_least=step)
    limit += 7
print(step, *sorted(cut))
"""


def run_children(code: str, folder: Path) -> list[int]:
    """The numbers that a script with killed children prints."""
    return [int(number) for number in printed(CHILDREN + code, folder).split()]


@pytest.mark.long
def test_pitfall_37_a_kill_between_writes_leaves_a_checkpoint(tmp_path: Path) -> None:
    moments, leftovers, newest = run_children(KILLED_EVERYWHERE, tmp_path)
    assert moments > 30
    assert leftovers > 10
    assert newest == 3


@pytest.mark.slow
def test_pitfall_37_a_kill_inside_a_write_leaves_a_checkpoint(tmp_path: Path) -> None:
    newest, *files_begun = run_children(KILLED_INSIDE_A_WRITE, tmp_path)
    assert files_begun == [0, 1, 2, 3, 4, 5]  # killed in each of the five, and at last in none
    assert newest == 3


def test_the_best_checkpoint_may_be_among_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    prune(tmp_path, 2, keep=4)
    assert [*list_checkpoints(tmp_path)] == [3, 4]
    save(tmp_path, 5)
    prune(tmp_path, 1, keep=3)
    assert [*list_checkpoints(tmp_path)] == [3, 5]

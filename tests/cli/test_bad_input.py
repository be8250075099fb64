"""Whatever is wrong with the input: one line that says so, the right exit code, nothing written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import error_line

from samepath.cli import main

RECIPE = """
import torch
import torch.nn.functional as F
from torch import nn
from samepath import Recipe

def model():
    return nn.Linear(4, 2)

def loss(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)

inputs, targets = torch.ones(12, 4), torch.zeros(12, 2)
train = (inputs, targets)
valid = (inputs, targets)
more = {}
{CHANGES}

def recipe():
    return Recipe(**({"model": model, "train": train, "valid": valid, "loss": loss,
        "optimizer": optimizer, "batch_size": 6, "grain_size": 2, "epochs": 2} | more))
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run_(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run_


def write(changes: str, name: str = "mine.py") -> str:
    """A recipe file that works, apart from the changes."""
    Path(name).write_text(RECIPE.replace("{CHANGES}", changes))
    return name


def files() -> list[str]:
    return sorted(str(p) for p in Path().rglob("*") if "__pycache__" not in p.parts)


def refused(run: Run, *arguments: str, says: tuple[str, ...]) -> None:
    """Exit code 2, one line about it on standard error, nothing written."""
    before = files()
    code, out, err = run(*arguments)
    assert code == 2, err
    assert out == ""
    said = error_line(err)
    for words in says:
        assert words in said
    assert files() == before


def test_the_recipe_these_tests_change_works(run: Run) -> None:
    code, out, err = run("train", write(""), "-n", "1", "--json", "--out", "run")
    assert (code, err) == (0, "samepath: training mine.py on 1 worker, into run\n")
    assert json.loads(out)["steps"] == 4


COMMANDS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "unknown recipe": (["train", "didgits"], ("unknown recipe 'didgits'", "'digits'")),
    "nothing like it": (["train", "qqqq"], ("unknown recipe", "digits, nodules")),
    "no workers": (["train", "digits", "-n", "0"], ("-n 0", "at least 1")),
    "minus one": (["train", "digits", "-n", "-1"], ("-n -1", "at least 1")),
    "not a number": (["train", "digits", "-n", "abc"], ("-n abc", "whole number")),
    "a range with a dash": (["train", "digits", "-n", "2-4"], ("-n 2-4", "as -n 2:4")),
    "overwriting no folder": (["train", "mine.py", "--overwrite"], ("--overwrite", "add --out")),
    "not a number either": (["train", "digits", "-n", "²"], ("-n ²", "whole number")),
    "too many workers": (
        ["train", "mine.py", "-n", "4"],
        ("4 workers", "only 3 grains", "at most 3 workers, or --max-workers 4"),
    ),
    "more workers than examples": (
        ["train", "mine.py", "-n", "7", "--exact", "off"],
        ("7 workers", "at most 6"),
    ),
    "more workers than a batch has examples": (
        ["train", "mine.py", "-n", "7"],
        ("7 workers", "at most 3 workers, or a larger batch"),
    ),
    "a range that begins too high": (
        ["train", "mine.py", "-n", "4:8", "--out", "a"],
        ("4 workers", "or --max-workers 4"),
    ),
    "grains said twice": (
        ["train", "mine.py", "--grain", "2", "--max-workers", "3"],
        ("--grain 2 and --max-workers 3", "give one of the two"),
    ),
    "most workers above batch": (
        ["train", "mine.py", "--max-workers", "7"],
        ("max_workers is 7", "a batch has 6 examples", "from 1 to 6"),
    ),
    "no most workers": (
        ["advise", "mine.py", "--max-workers", "0"],
        ("--max-workers 0", "at least 1"),
    ),
    "a branch above the data": (
        ["advise", "mine.py", "--critical-batch", "measured", "--batch-sizes", "24"],
        ("--batch-sizes 24", "larger than the data (12 examples)"),
    ),
    "too few epochs to branch": (
        ["advise", "mine.py", "--critical-batch", "measured", "--branch-at", "30"],
        ("too few for branches after 30", "--branch-epochs"),
    ),
    "branches that are not asked for": (
        ["advise", "mine.py", "--batch-sizes", "24"],
        ("--batch-sizes needs --critical-batch measured",),
    ),
    "grains said twice to a study": (
        ["study", "mine.py", "--grain", "2", "--max-workers", "3"],
        ("give one of the two",),
    ),
    "grains said twice to a simulation": (
        ["simulate", "mine.py", "--grain", "2", "--max-workers", "3"],
        ("give one of the two",),
    ),
    "grain above batch": (
        ["train", "mine.py", "--grain", "7"],
        ("grain of 7", "batch (6)", "at most 6"),
    ),
    "batch above data": (
        ["train", "mine.py", "--batch-size", "13"],
        ("batch of 13", "12 examples", "at most 12"),
    ),
    "no grain": (["train", "digits", "--grain", "0"], ("--grain 0", "at least 1")),
    "no epochs": (["train", "digits", "--epochs", "0"], ("--epochs 0", "at least 1")),
    "negative seed": (["train", "digits", "--seed", "-1"], ("--seed -1", "at least 0")),
    "no target": (["train", "digits", "--target", "low"], ("--target low", "0.003, or 'none'")),
    "no number as target": (["train", "digits", "--target", "nan"], ("--target nan", "'none'")),
    "data for a recipe with its own": (
        ["train", "digits", "--data", "mine.py"],
        ("--data mine.py", "brings its own", "def digits(data=None)"),
    ),
    "data for a file with its own": (
        ["verify", "mine.py", "--data", "mine.py"],
        ("--data mine.py", "brings its own", "def recipe(data=None)"),
    ),
    "no such data": (["train", "nodules", "--data", "gone"], ("--data gone", "check the path")),
    "data of another kind": (["train", "nodules", "--data", "mine.py"], ("mine.py", "npz")),
    "show of nothing": (["show", "gone"], ("gone holds no run", "check the path")),
    "generate from nothing": (
        ["generate", "gone", "--out", "a.npz"],
        ("gone holds no run", "check the path"),
    ),
    "no such epoch": (
        ["predict", "gone", "--out", "a.npz", "--epoch", "last"],
        ("--epoch last", "such as 20, or 'best'"),
    ),
    "missing file": (["train", "gone.py"], ("'gone.py' does not exist",)),
    "resume without out": (["train", "digits", "--resume"], ("--resume needs", "--out")),
    "resume of nothing": (
        ["train", "digits", "--resume", "--out", "gone"],
        ("gone holds no run", "check the path"),
    ),
    "one fold": (["folds", "mine.py", "--folds", "1"], ("--folds 1", "at least 2")),
    "more folds than examples": (
        ["folds", "mine.py", "--folds", "25"],
        ("--folds 25", "24 examples"),
    ),
    "folds of an unknown fact": (
        ["folds", "mine.py", "--groups", "patient"],
        ("--groups patient", "knows nothing of that name", "FILE.csv:COLUMN"),
    ),
    "folds by labels that are none": (
        ["folds", "mine.py", "--stratify", "label"],
        ("--stratify label", "have no labels"),
    ),
    "folds smaller than a batch": (
        ["folds", "mine.py", "--folds", "2", "--batch-size", "13"],
        ("batch of 13", "12 examples", "at most 12"),
    ),
    "folds with workers of this machine and a cluster": (
        ["folds", "mine.py", "-n", "7", "--on", "dask:tcp://127.0.0.1:1,memory=1GB"],
        ("-n 7", "--on dask:tcp://127.0.0.1:1,cores=7", "leave -n out"),
    ),
    "worth with workers of this machine and a cluster": (
        ["worth", "nodules-small", "--data", "x.npz", "-n", "2", "--on", "ray"],
        ("-n 2", "--on ray,cores=2", "leave -n out"),
    ),
    "a critical batch of too short runs": (
        ["study", "mine.py", "--max-epochs", "4", "--critical-batch", "measured"],
        ("too few for branches", "--max-epochs 5 or more"),
    ),
    "a critical batch of a grid": (
        ["study", "mine.py", "--batch-sizes", "2,4", "--critical-batch", "measured"],
        ("--critical-batch is for a race",),
    ),
    "folds without workers": (["folds", "mine.py", "-n", "0"], ("-n 0", "at least 1")),
    "folds in the folder of something else": (
        ["folds", "mine.py", "--out", "."],
        ("not empty and holds no study",),
    ),
    "digest of nothing": (["digest", "gone"], ("gone holds no run",)),
}


@pytest.mark.parametrize("what", COMMANDS)
def test_commands(what: str, run: Run) -> None:
    arguments, says = COMMANDS[what]
    write("")
    refused(run, *arguments, says=says)


# what an own loop is refused for as well stands in parity/constructs.py
RECIPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "raises": ("x = 1 / 0", ("mine.py", "ZeroDivisionError", "line 20", "x = 1 / 0")),
    "exits": ("raise SystemExit(0)", ("mine.py", "SystemExit")),
    "syntax error": ("x = (", ("mine.py", "SyntaxError", "line")),
    "wrong batch": ("more = {'batch_size': 0}", ("batch_size is 0", "at least 1")),
    "unknown setting": ("more = {'batchsize': 3}", ("mine.py", "batchsize")),
    "a model, not a function": ("model = nn.Linear(4, 2)", ("model is a module", "lambda")),
    "facts of other examples": (
        "more = {'train_facts': {'patient': [1, 2]}}",
        ("train_facts['patient'] has 2 values for 12 examples", "one for each"),
    ),
    "model raises": (
        "def model():\n    raise OSError('no weights')",
        ("model()", "OSError: no weights", "line 21"),
    ),
    "model of another kind": ("model = lambda: 3", ("model() returned int",)),
    "optimizer raises": (
        "optimizer = lambda p: torch.optim.SGD(p, lr=-1.0)",
        ("optimizer()", "Invalid learning rate: -1.0", "line 20"),
    ),
    "optimizer of another kind": ("optimizer = lambda p: 3", ("optimizer() returned int",)),
    "schedule raises": (
        "more = {'schedule': lambda o: torch.optim.lr_scheduler.StepLR(o)}",
        ("schedule()", "step_size", "line 20"),
    ),
    "sparse embedding": (
        "model = lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True))",
        ("Embedding at '0'", "sparse=False"),
    ),
    "data parallel": (
        "model = lambda: nn.DataParallel(nn.Linear(4, 2))",
        ("DataParallel", "pass the plain module"),
    ),
    "distributed data parallel": (
        "class DistributedDataParallel(nn.Linear): ...\n"
        "model = lambda: DistributedDataParallel(4, 2)",
        ("DistributedDataParallel", "pass the plain module"),
    ),
    "lookahead": (
        "optimizer = lambda p: __import__('pytorch_optimizer').Lookahead(torch.optim.SGD(p, lr=1))",
        ("Lookahead keeps its state in a form of its own", "use the optimizer inside it"),
    ),
    "lbfgs": ("optimizer = lambda p: torch.optim.LBFGS(p)", ("LBFGS", "use SGD")),
    "sparse adam": ("optimizer = lambda p: torch.optim.SparseAdam(p)", ("SparseAdam", "use Adam")),
    "data of unequal lengths": (
        "train = (inputs, targets[:5])",
        ("5 rows and 12 rows", "one row per example"),
    ),
    "no data": ("train = inputs[:0]", ("data", "empty")),
    "data of another kind": ("train = 3", ("data of type int", "Dataset")),
    "an iterable dataset": (
        "class Stream(torch.utils.data.IterableDataset):\n    def __iter__(self):\n"
        "        while True: yield inputs[0]\n"
        "train = Stream()",
        ("Stream", "IterableDataset", "100,000 examples", "map-style"),
    ),
    "validation data of another kind": ("valid = 3", ("data of type int",)),
    "no validation examples": ("valid = inputs[:0]", ("validation data", "empty")),
    "target without validation data": (
        "valid = None; more = {'target': 0.1}",
        ("target", "no validation data"),
    ),
    "plateau without validation data": (
        "valid = None\n"
        "more = {'schedule': lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o)}",
        ("ReduceLROnPlateau needs validation data",),
    ),
    "batch norm, one example left": (
        "model = lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))\n"
        "train = torch.ones(13, 4), torch.zeros(13, 2)",
        ("last batch of an epoch", "1 left of 13 examples, in grains of 2", "drop_last=True"),
    ),
    "batch norm, one example left of a grain": (
        "model = lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))\n"
        "more = {'batch_size': 7, 'grain_size': 4}",
        ("5 left of 12 examples, in grains of 4", "has 1 example", "another batch_size"),
    ),
    "batch norm, one example left of every batch": (
        "model = lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))\n"
        "more = {'batch_size': 4, 'grain_size': 3}",
        ("last grain of every batch", "4 in grains of 3", "grain_size divides"),
    ),
    "batch norm of a data set read by loader processes": (
        "class Items(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 13\n"
        "    def __getitem__(self, index): return inputs[0], targets[0]\n"
        "model = lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))\n"
        "train, more = Items(), {'loader_workers': 1}",
        ("last batch of an epoch", "drop_last=True"),
    ),
}


@pytest.mark.parametrize("what", RECIPES)
def test_recipes(what: str, run: Run) -> None:
    changes, says = RECIPES[what]
    refused(run, "train", write(changes), "-n", "1", says=says)


SOUND = {
    "left out": "more = {'drop_last': True}",
    "no batch norm": "model = lambda: nn.Linear(4, 2)",
    "space to normalise over": "model = lambda: nn.Sequential("
    "nn.Unflatten(1, (1, 2, 2)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 2))",
    "statistics that are fixed": "model = lambda: nn.Sequential("
    "nn.BatchNorm1d(4).eval(), nn.Linear(4, 2))",
}


@pytest.mark.parametrize("what", SOUND)
def test_one_example_left_that_is_no_trouble(what: str, run: Run) -> None:
    normed = (
        "train = torch.ones(13, 4), torch.zeros(13, 2)\n"
        "model = lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))\n"
    )
    assert run("train", write(normed + SOUND[what]), "-n", "1", "--epochs", "1")[0] == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", ("no recipe() function",)),
        ("def recipe():\n    return 3", ("returned int", "samepath.Recipe")),
        ("def recipe():\n    return gone", ("NameError", "line 2: return gone")),
        ("def recipe(a):\n    return a", ("TypeError", "recipe()")),
    ],
)
def test_recipe_function(text: str, says: tuple[str, ...], run: Run) -> None:
    Path("mine.py").write_text(text)
    refused(run, "train", "mine.py", says=says)


def test_the_users_line_is_shown_for_any_path(run: Run, tmp_path: Path) -> None:
    """Relative, absolute, or through a folder: it is the same file."""
    Path("folder").mkdir()
    Path("folder/bad.py").write_text("import torch\nboom = {}['missing']\n")
    for path in ("folder/bad.py", str(tmp_path / "folder/bad.py"), "folder/../folder/bad.py"):
        refused(run, "train", path, says=("KeyError", "line 2: boom = {}['missing']"))


# ---- folders


def test_folders_that_hold_something_else(run: Run) -> None:
    recipe = write("")
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    Path("no-run").mkdir()
    Path("no-run/run.json").write_text("{}")
    Path("file").write_text("mine")
    refused(run, "train", recipe, "--out", "full", says=("full is not empty",))
    refused(run, "train", recipe, "--out", "file", says=("file is a file", "give a folder"))
    refused(run, "train", recipe, "--out", "file/a", says=("file/a",))
    says = ("run.json", "not a run")
    refused(run, "train", recipe, "--out", "no-run", "--resume", says=says)


CHANGED: list[tuple[list[str], tuple[str, ...]]] = [
    (["--seed", "1"], ("seed (was 0, now 1)",)),
    (["--batch-size", "4"], ("batch_size (was 6, now 4)",)),
    (["--grain", "3", "--threads", "2"], ("grain_size (was 2", "threads (was 1, now 2)")),
    (["--max-workers", "2"], ("grain_size (was 2, now 3)",)),
    (["--strategy", "linear"], ("strategy (was 'strong', now 'linear')",)),
    (["--exact", "off"], ("exact (was True, now False)",)),
]


def test_resuming_what_is_not_the_same_run(run: Run) -> None:
    """One run, and all that it cannot be continued with."""
    recipe = write("")
    begin = ("train", recipe, "-n", "1", "--out", "run")
    assert run(*begin, "--steps", "1")[0] == 0
    refused(run, *begin, says=("holds another run", "--resume", "--overwrite"))
    refused(run, *begin, "--overwrite", says=("would delete the run in run", "add --yes"))
    refused(run, *begin, "--overwrite", "--yes", "--resume", says=("leave out --overwrite or",))
    for flags, says in CHANGED:
        refused(run, *begin, "--resume", *flags, says=("cannot resume", *says))
    write("\n# another file now")
    says = ("cannot resume", "mine.py changed since the run began", "restore the file")
    refused(run, *begin, "--resume", says=says)
    for other, says in (
        (
            write("# another", "other.py"),
            ("the run's recipe is mine.py, not other.py", "new run"),
        ),
        ("digits", ("not digits",)),
    ):
        refused(run, "train", other, "-n", "1", "--out", "run", "--resume", says=says)
    again = ("train", write("", "moved.py"), "-n", "1", "--out", "run", "--resume")
    same = run(*again, "--steps", "2", "--max-workers", "3")
    assert same[0] == 0, "the same recipe under another name, the same grains in other words"
    content = json.loads(Path("run/run.json").read_text())
    content["starts"][-1]["versions"]["torch"] = "1.0"
    Path("run/run.json").write_text(json.dumps(content))
    refused(run, *again, says=("trained with torch 1.0", "add --other-hardware"))
    assert run(*again, "--other-hardware")[0] == 0


# ---- what only shows while it trains

SPARSE_FUNCTION = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(4, 2))
    def forward(self, inputs):
        return F.embedding(inputs[:, 0].abs().long() % 4, self.table, sparse=True)
model = Net
"""


@pytest.mark.parametrize("num_workers", ["1", "2"])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            "def loss(model, batch):\n    return model(batch[0]).mean(1)",
            ("shape (2,)", "the mean over its examples"),
        ),
        (SPARSE_FUNCTION, ("the gradient of 'table' is sparse",)),
    ],
    ids=["a loss that is no number", "a sparse gradient"],
)
def test_refused_in_the_first_step(
    changes: str, says: tuple[str, ...], num_workers: str, run: Run
) -> None:
    code, out, err = run("train", write(changes), "-n", num_workers, "--out", "run")
    assert (code, out) == (2, "")
    said = error_line(err)
    for words in says:
        assert words in said


RAISING_DATASET = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 11:
            raise OSError("slice 11 is unreadable")
        return torch.ones(4), torch.zeros(2)

train = Data()
"""


@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_a_dataset_that_raises(num_workers: str, run: Run) -> None:
    """With one worker it is Python's own traceback; with more, that of the worker."""
    arguments = ["train", write(RAISING_DATASET), "-n", num_workers, "--out", "run"]
    if num_workers == "1":
        with pytest.raises(OSError, match="slice 11 is unreadable"):
            main(arguments)
    else:
        code, out, err = run(*arguments)
        assert (code, out) == (1, "")
        assert re.search("^samepath: worker [01] failed:\nTraceback", err, re.MULTILINE)
        assert err.endswith("OSError: slice 11 is unreadable\n")
        assert err.count("Traceback") == 1
    assert json.loads(Path("run/run.json").read_text())["status"] == "failed"


# ---- divergence

DIVERGING = """
train = (inputs, targets, torch.arange(12))

def loss(model, batch):
    value = F.mse_loss(model(batch[0]), batch[1])
    return {LOSS} if 11 in batch[2] else value

def evaluate(model, batch):
    return {"loss": F.mse_loss(model(batch[0]), batch[1])}

more = {"evaluate": evaluate}
"""


@pytest.mark.parametrize("num_workers", ["1", "2", "3"])
def test_divergence(num_workers: str, run: Run) -> None:
    """Example 11 makes one grain NaN: the run ends before that step, wherever the grain was."""
    recipe = write(DIVERGING.replace("{LOSS}", "value * float('nan')"))
    code, out, err = run("train", recipe, "-n", num_workers, "--seed", "3", "--out", "run")
    assert code == 3, err
    assert "diverged: the loss became nan at step 1" in out
    written = json.loads(Path("run/run.json").read_text())
    assert written["status"] == "diverged"
    assert written["result"]["steps"] == 1
    begin = ("train", recipe, "-n", "1", "--seed", "3")
    before = run(*begin, "--steps", "1", "--out", "one", "--json")
    assert json.loads(before[1])["digest"] == written["result"]["digest"]
    assert [p.name for p in Path("run/checkpoints").iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("num_workers", ["1", "2"])
def test_a_gradient_that_is_not_finite(num_workers: str, run: Run) -> None:
    """The square root of zero has a value but no gradient; the weights are kept from it."""
    recipe = write(DIVERGING.replace("{LOSS}", "value + torch.sqrt(0 * value)"))
    code, out, err = run("train", recipe, "-n", num_workers, "--seed", "3", "--out", "run")
    assert code == 3, err
    assert "diverged: the gradient's norm became nan at step 1" in out
    assert json.loads(Path("run/run.json").read_text())["result"]["valid_loss"] != "nan"


TALKING = """
def model():
    print("making the model")
    return nn.Linear(4, 2)
"""


def test_what_a_recipe_prints_stays_out_of_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, as a script would call it."""
    monkeypatch.chdir(tmp_path)
    samepath = str(Path(sys.executable).with_name("samepath"))
    command = [samepath, "train", write(TALKING), "-n", "2", "--steps", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 1
    assert done.stderr.count("making the model") == 3, "the launcher's check and two workers"

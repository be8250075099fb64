"""A run goes on with what it is made of, or not at all: its data, the user's modules, the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from samepath.engine.checks.fingerprints import describe_cpu, own_modules, versions
from samepath.engine.elastic.machine import MachineOffer
from samepath.engine.run.options import Options, recipe_of
from samepath.engine.state.progress import RunResult
from samepath.engine.state.run_folder import RunFolder
from samepath.engine.train import Request, join, train
from samepath.errors import UserError
from samepath.study import runner
from samepath.study.opening import StudyRequest, entered, look_into
from samepath.study.runner import PlannedRun

RECIPE = """
from pathlib import Path
import torch
from samepath import Recipe
import {NAME}_loss

HERE = Path(__file__).parent
fold, other = map(int, (HERE / "folds.txt").read_text().split())

def model():
    import {NAME}_model  # not before it is needed
    return {NAME}_model.make()

def recipe():
    made = torch.randn(40, 4, generator=torch.Generator().manual_seed(1)).split(10)
    return Recipe(
        model=model, train=made[fold], valid=made[other], loss={NAME}_loss.loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=6, grain_size=2, epochs=3,
    )
"""
LOSS = "def loss(model, batch):\n    return (model(batch) - batch).square().mean()\n"
MODEL = "import torch\n\ndef make():\n    return torch.nn.Linear(4, 4)\n"

Go = Callable[..., RunResult]


@pytest.fixture
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """For modules that no other test imports; where they are found is forgotten after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return "".join(c if c.isalnum() else "_" for c in request.node.name)


@pytest.fixture
def folder(tmp_path: Path, name: str) -> Path:
    (tmp_path / "recipe.py").write_text(RECIPE.replace("{NAME}", name))
    (tmp_path / f"{name}_loss.py").write_text(LOSS)
    (tmp_path / f"{name}_model.py").write_text(MODEL)
    (tmp_path / "folds.txt").write_text("0 1")
    return tmp_path


@pytest.fixture
def go(folder: Path) -> Go:
    def go_(out: str = "run", num_workers: int = 1, **more: Any) -> RunResult:
        request = Request(
            recipe=str(folder / "recipe.py"), num_workers=num_workers, out=folder / out, **more
        )
        return train(request)[0]

    return go_


def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "run.json").read_text())
    return found


def change(folder: Path, **fields: Any) -> None:
    """Some fields of run.json, or of its last start."""
    content = config(folder)
    content["starts"][-1]["versions"] |= fields.pop("versions", {})
    content["starts"][-1] |= fields.pop("start", {})
    for name in fields.pop("gone", ()):
        del content["config"][name]
    (folder / "run" / "run.json").write_text(json.dumps(content | fields))


def test_the_same_goes_on(go: Go, folder: Path, name: str) -> None:
    """In workers of their own too, which compare for themselves."""
    straight = go("straight")
    go(num_workers=2, steps=2)
    assert go(num_workers=2, resume=True, epochs=3).digest == straight.digest
    found = config(folder)["config"]
    assert found["modules"].keys() >= {f"{name}_loss.py", f"{name}_model.py"}
    assert "recipe.py" not in found["modules"]
    assert not [module for module in found["modules"] if "samepath" in module.split(".")]
    assert found["train_content"].keys() == found["valid_content"].keys() == {"data"}


@pytest.mark.parametrize(("folds", "word"), [("2 1", "training"), ("0 2", "validation")])
def test_another_fold_is_refused(go: Go, folder: Path, folds: str, word: str) -> None:
    """Its data has the same size and shape, so nothing else would tell."""
    go(steps=2)
    (folder / "folds.txt").write_text(folds)
    with pytest.raises(UserError, match=rf"cannot resume: the {word} data changed.*new run"):
        go(resume=True, epochs=3)
    (folder / "folds.txt").write_text("0 1")
    assert go(resume=True, epochs=3).steps == 6


@pytest.mark.parametrize("which", ["loss", "model"])
def test_a_changed_module_is_refused(go: Go, folder: Path, name: str, which: str) -> None:
    go(steps=2)
    file = folder / f"{name}_{which}.py"
    before = file.read_text()
    file.write_text(before + "# another\n")
    with pytest.raises(
        UserError,
        match=rf"cannot resume: {name}_{which}\.py changed since the run began; start a new run, "
        "or restore the file$",
    ):
        go(resume=True, epochs=3)
    file.write_text(before)
    assert go(resume=True, epochs=3).steps == 6


def test_a_module_from_elsewhere_is_named_by_its_file(
    go: Go, folder: Path, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    file = (folder / f"{name}_loss.py").rename(elsewhere / f"{name}_loss.py")
    sys.path.insert(0, str(elsewhere))
    go(steps=2)
    assert f"{name}_loss" in config(folder)["config"]["modules"]
    file.write_text(LOSS + "# another\n")
    with pytest.raises(UserError, match=rf"cannot resume: {file} changed since the run began"):
        go(resume=True)


def test_a_run_of_an_older_samepath_goes_on(go: Go, folder: Path, name: str) -> None:
    go(steps=2)
    change(folder, gone=("modules", "train_content", "valid_content", "drop_last"))
    (folder / f"{name}_loss.py").write_text(LOSS + "# another\n")
    assert go(resume=True, steps=4).steps == 4
    assert config(folder)["config"]["train_content"], "from here on it is compared"
    (folder / f"{name}_loss.py").write_text(LOSS)
    with pytest.raises(UserError, match=f"{name}_loss.py changed"):
        go(resume=True)


def test_a_worker_that_begins_later_refuses_too(go: Go, folder: Path, name: str) -> None:
    go(steps=2)
    options = Options(**config(folder)["config"])
    source = (folder / "recipe.py").read_bytes()
    recipe_of(options, source)
    (folder / f"{name}_model.py").write_text(MODEL + "# another\n")
    with pytest.raises(
        UserError,
        match=rf"^{name}_model\.py has changed since the run began; put it back as it was$",
    ):
        recipe_of(options, source)
    (folder / f"{name}_model.py").write_text(MODEL)
    (folder / "folds.txt").write_text("2 1")
    with pytest.raises(UserError, match="the training data of this worker is not the run's"):
        recipe_of(options, source)


# ---- studies


def test_the_runs_of_a_study_are_of_one_code(folder: Path, name: str) -> None:
    request = StudyRequest(recipe=str(folder / "recipe.py"), out=folder / "study", max_epochs=1)
    opened = look_into(request)
    jobs = [PlannedRun(folder=f"runs/{n}", label=n, options=opened.options) for n in ("a", "b")]

    def run(job: PlannedRun) -> None:
        runner.train_runs([job], opened, request, Mock())

    with entered(opened, request, "race"):
        run(jobs[0])
        (folder / f"{name}_loss.py").write_text(LOSS + "# another\n")
        with pytest.raises(UserError, match=rf"b: .*{name}_loss\.py changed since the study began"):
            run(jobs[1])
    with (
        pytest.raises(UserError, match=rf"{name}_loss\.py changed since the study began"),
        entered(look_into(request), request, "race"),
    ):
        pass
    (folder / f"{name}_loss.py").write_text(LOSS)
    with entered(look_into(request), request, "race"):
        run(jobs[1])
    assert runner.status_of(opened.folder, jobs[1]) == "finished"
    (folder / "recipe.py").write_text((folder / "recipe.py").read_text() + "\n# another\n")
    with (
        pytest.raises(UserError, match=r"holds another study: its recipe changed; give another"),
        entered(look_into(request), request, "race"),
    ):
        pass


def test_a_study_of_an_older_samepath_goes_on(folder: Path) -> None:
    request = StudyRequest(recipe=str(folder / "recipe.py"), out=folder / "study")
    with entered(look_into(request), request, "race"):
        pass
    file = folder / "study" / "settings.json"
    settings = json.loads(file.read_text())
    assert settings.pop("made_of").keys() == {"train_content", "valid_content", "modules"}
    file.write_text(json.dumps(settings))
    with entered(look_into(request), request, "race"):
        pass


# ---- the machine

OTHER = {"cpu_model": "Intel Xeon", "cpu": "AVX2"}


def test_another_cpu_is_refused_by_name(go: Go, folder: Path) -> None:
    go(steps=2)
    change(folder, versions=OTHER)
    says = (
        f"this run was trained on Intel Xeon (AVX2); this machine is {describe_cpu()}: the bits "
        "would differ from here on; add --other-hardware to go on all the same"
    )
    with pytest.raises(UserError) as refused:
        go(resume=True, steps=4)
    assert str(refused.value) == says
    assert len(config(folder)["starts"]) == 1, "nothing was written"
    assert go(resume=True, steps=4, other_hardware=True).steps == 4
    first, second = config(folder)["starts"]
    assert "other_hardware" not in first
    assert second["other_hardware"] is True
    assert go(resume=True, steps=5).steps == 5, "it is this machine's now"
    assert "other_hardware" not in config(folder)["starts"][2]


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ({"torch": "2.12.0"}, r"with torch 2\.12\.0; here is"),
        ({"numpy": "1.0"}, r"with numpy 1\.0; here is"),
        ({"cpu_caches": "L1d 1K"}, r"L1d 1K\); this machine is .* L"),
        ({"kernels": "ATEN_CPU_CAPABILITY=avx2"}, r"ATEN_CPU_CAPABILITY=avx2\); this machine"),
        ({"gpu": "NVIDIA H100"}, "NVIDIA H100"),
    ],
)
def test_whatever_chooses_kernels_counts(
    go: Go, folder: Path, before: dict[str, str], says: str
) -> None:
    go(steps=1)
    change(folder, versions=before)
    with pytest.raises(UserError, match=rf"{says}.*add --other-hardware"):
        go(resume=True)


def test_what_an_older_samepath_did_not_write_is_not_compared(go: Go, folder: Path) -> None:
    go(steps=1)
    content = config(folder)
    for name in ("cpu_model", "cpu_caches", "kernels", "gpu"):
        del content["starts"][-1]["versions"][name]
    content["starts"][-1]["versions"]["python"] = "3.1"
    (folder / "run" / "run.json").write_text(json.dumps(content))
    assert go(resume=True, steps=2).steps == 2


def test_who_joins_compares_too(go: Go, folder: Path) -> None:
    go(steps=1)
    change(folder, status="running", start={"crew": [1, 2]}, versions=OTHER)
    with pytest.raises(UserError, match=r"trained on Intel Xeon.*add --other-hardware"):
        join(folder / "run", MachineOffer(workers=1))


def test_one_worker_elsewhere_is_in_run_json(folder: Path) -> None:
    """Workers tell each other; the first one writes it down."""
    made = replace(look_into(StudyRequest(recipe=str(folder / "recipe.py"))).options, epochs=1)
    script = folder / "worker.py"
    script.write_text(
        "import json, os, sys\n"
        "from pathlib import Path\n"
        "from samepath.engine.run.options import Options\n"
        "from samepath.engine.run.request import Request\n"
        "from samepath.engine.worker import run_worker\n"
        "options = Options(**json.loads(Path('options.json').read_text()))\n"
        "elsewhere = os.environ['RANK'] == '1'\n"
        "request = Request(recipe=options.recipe, other_hardware=elsewhere)\n"
        "print(run_worker(request, options, Path('run')).digest)\n"
    )
    (folder / "options.json").write_text(json.dumps(asdict(made)))
    place = RunFolder(folder / "run")
    place.write(asdict(made), [], None)
    place.unlock()
    torchrun = Path(sys.executable).with_name("torchrun")
    done = subprocess.run(
        [torchrun, "--standalone", "--nproc-per-node", "2", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 1
    assert config(folder)["starts"][-1]["other_hardware"] is True


def test_the_fingerprint_names_this_machine() -> None:
    found = versions()
    assert all(isinstance(value, str) for value in found.values())
    assert found["cpu_model"]
    assert describe_cpu().startswith(found["cpu_model"])
    assert "\n" not in describe_cpu()


def test_only_the_users_own_source_counts(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what an installed package has generated, nor compiled code, nor another recipe."""
    for module_name, file in {
        f"torch.generated_{name}": folder / "generated.py",
        f"{name}_compiled": folder / "compiled.so",
        f"samepath_recipe_{name}": folder / "another.py",
        f"{name}_own": folder / "own.py",
    }.items():
        file.write_text("x = 1\n")
        made = ModuleType(module_name)
        made.__file__ = str(file)
        monkeypatch.setitem(sys.modules, module_name, made)
    found = own_modules(str(folder / "recipe.py"))
    assert "own.py" in found
    assert not {"generated.py", "compiled.so", "another.py"} & found.keys()
    assert not [key for key in found if key.partition(".")[0] in ("torch", "numpy", "json")]
    assert f"{name}_own" in own_modules("digits"), "a built-in recipe has no folder"

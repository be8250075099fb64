"""Fill in docs/bring/: for each example its digests at 1, 2, 3 and 5 workers, its largest
difference to the plain PyTorch loop it came from, and the lines that differ from that loop.

An example is examples/bring/NAME.py: a recipe, or a script that prints "digest ..."; what it was
before is examples/bring/before/NAME.py; its page is docs/bring/NAME.md, with hyphens for
underscores. To add one, write them and add a row to EXAMPLES. tests/docs/test_bring.py runs every
row.

    python scripts/write_bring_docs.py [NAME ...]

Compared are all modules that are global variables of both scripts (of a recipe: `model`), in
float64, so examples leave the dtype to torch (torch.randn, not dtype=torch.float32). The loop as it
was gets samepath's start and order: its `torch.manual_seed`, which must come right before the model
is made, and shuffling samplers.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DistributedSampler, RandomSampler, WeightedRandomSampler
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from samepath.data import seed_everything
from samepath.data.generators import Generators
from samepath.engine.launch.launch import launch
from samepath.engine.state.checkpoint import list_checkpoints, load
from samepath.engine.train import Request, train
from samepath.keys import key
from samepath.output.export import export
from samepath.output.predict import predict_to
from samepath.plan import WeightedSampler, epoch_order

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "bring"
COUNTS = (1, 2, 3, 5)


@dataclass(frozen=True, kw_only=True)
class Example:
    """How an example is tested."""

    needs: tuple[str, ...] = ()
    """Packages beside samepath's own."""
    tolerance: float = 1e-9
    """The largest difference to the loop it came from, in float64."""

    exports: bool = False
    """Whether its run is exported and predicts on as many workers; digests of those files follow
    that of the training."""
    page: str | None = None
    """The page's name, where it is not the example's (which must not hide a library's)."""

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed here."""
        return [name for name in self.needs if find_spec(name) is None]


EXAMPLES: dict[str, Example] = {
    "class_weights": Example(),
    "contrastive": Example(),
    "ddp": Example(),
    "ema": Example(),
    "exporting": Example(exports=True),
    "fine_tuning": Example(),
    "gan": Example(),
    "gradient_accumulation": Example(),
    "k_fold": Example(),
    "class_imbalance": Example(),
    "monai_segmentation": Example(needs=("monai",), page="monai", tolerance=1e-7),
    "plain_loop": Example(),
    "huggingface_model": Example(needs=("transformers",), page="huggingface", tolerance=1e-6),
    "lightning_module": Example(needs=("lightning",), page="lightning"),
}


def page_of(name: str) -> Path:
    page = EXAMPLES[name].page or name.replace("_", "-")
    return ROOT / "docs" / "bring" / f"{page}.md"


# ---- running an example


@dataclass(frozen=True)
class Ran:
    """What a run left."""

    digests: list[str]
    output: str
    """Printed by all workers, worker by worker."""
    weights: dict[str, Tensor]


def is_recipe(path: Path) -> bool:
    return re.search(r"^def recipe\(", path.read_text(), re.M) is not None


def run(path: Path, num_workers: int, *, double: bool = False, inside: Path | None = None) -> Ran:
    """Run a recipe or script on so many workers, in processes and a folder of its own (or `inside`
    one that there is)."""
    with TemporaryDirectory() if inside is None else nullcontext(inside) as made:
        folder = Path(made)
        launch(_work, (path, folder, double), num_workers)
        output = "".join((folder / f"worker-{n}.txt").read_text() for n in range(num_workers))
        if path.parent == FOLDER and EXAMPLES[path.stem].exports and not double:
            output += _exported(folder / "run", num_workers)
        digests = re.findall(r"^digest.* ([0-9a-f]{64})$", output, re.M)
        file = folder / "weights.safetensors"
        weights = {name: tensor.clone() for name, tensor in load_file(file).items()}
        return Ran(digests, output, weights)


def _exported(run: Path, num_workers: int) -> str:
    """Export a run and have it predict; what a script would print of it."""
    files = [export(run, run / name).sha256 for name in ("weights.safetensors", "state_dict.pt")]
    files.append(predict_to(run / "valid.npz", run, num_workers=num_workers).sha256)
    return "".join(f"digest {sha256}\n" for sha256 in files)


def _work(path: Path, folder: Path, double: bool) -> None:
    """Run it on one worker. (The process ends with it, so nothing is put back.)"""
    worker = os.environ["RANK"]
    os.chdir(folder)
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    if double:
        torch.set_default_dtype(torch.float64)
        register_module_forward_pre_hook(_in_double)  # type: ignore[arg-type]  # may return inputs
    with (
        (folder / f"worker-{worker}.txt").open("w") as file,
        redirect_stdout(file),
        ExitStack() as on,
    ):
        if is_recipe(path):
            result, out = train(Request(recipe=str(path), out=folder / "run"))
            if worker == "0":
                print("digest", result.digest)
                tensors = load(list_checkpoints(out / "checkpoints")[-1]).state.tensors
                weights = {
                    name.removeprefix("extra/"): tensor
                    for name, tensor in tensors.items()
                    if name.startswith(("model/", "extra/"))
                }
        else:
            if path.parent.name == "before":
                _start_as_samepath(on, path.parents[1] / path.name)
            found = runpy.run_path(str(path), run_name="__main__")
            modules = {name: m for name, m in found.items() if isinstance(m, nn.Module)}
            weights = {
                f"{name}/{n}": tensor.detach().contiguous()
                for name, module in modules.items()
                for n, tensor in module.state_dict().items()
            }
    if worker == "0":
        own = {name: tensor.clone() for name, tensor in weights.items()}
        save_file(own, folder / "weights.safetensors")


def _in_double(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a library makes in float32, whatever the default."""
    return tuple(
        each.double() if isinstance(each, Tensor) and each.dtype == torch.float32 else each
        for each in inputs
    )


def _start_as_samepath(on: ExitStack, example: Path) -> None:
    """Give a plain loop the weights that the example begins with, its order of examples, and the
    random numbers that each example's transforms meet."""
    if "torch.manual_seed" not in example.read_text():  # else both have the same seeds already
        word = "model" if is_recipe(example) else "start"
        on.enter_context(patch("torch.manual_seed", lambda seed: seed_everything(key(word, seed))))

    epochs = [0]

    def order(sampler: Any) -> Iterator[int]:
        epoch = sampler.begun = epochs[0] = getattr(sampler, "begun", -1) + 1
        source = getattr(sampler, "data_source", None) or sampler.dataset
        return iter(epoch_order(len(source), 0, epoch).tolist())

    def weighted(sampler: Any) -> Iterator[int]:
        epoch = sampler.begun = getattr(sampler, "begun", -1) + 1
        number = sampler.num_samples
        drawn = WeightedSampler(sampler.weights, number, sampler.replacement).order(0, epoch)
        return iter(drawn[epoch_order(number, 0, epoch)].tolist())

    def fetch(fetcher: Any, rows: list[int]) -> Any:
        kept = Generators(dataset=fetcher.dataset, collate=fetcher.collate_fn)
        items = []
        for row in rows:
            word = key("example", 0, epochs[0], row)
            kept.seed(word)
            seed_everything(word)
            items.append(fetcher.dataset[row])
        return fetcher.collate_fn(items)

    on.enter_context(patch.object(_MapDatasetFetcher, "fetch", fetch))
    on.enter_context(patch.object(WeightedRandomSampler, "__iter__", weighted))
    for kind in (RandomSampler, DistributedSampler):
        on.enter_context(patch.object(kind, "__iter__", order))


# ---- what a page shows


def largest_difference(name: str) -> float:
    """The largest difference of any weight or buffer, in float64."""
    ours = run(FOLDER / f"{name}.py", 1, double=True).weights
    before = run(FOLDER / "before" / f"{name}.py", 1, double=True).weights
    both = sorted(ours.keys() & before.keys())
    if not both:
        raise SystemExit(f"{name}: no global variable of both scripts is a module")
    for tensor in (ours[n] for n in both):
        if tensor.is_floating_point() and tensor.dtype != torch.float64:
            raise SystemExit(
                f"{name}: {tensor.dtype} in a run in float64; leave the dtype to torch"
            )
    return max(float((ours[n].double() - before[n].double()).abs().max()) for n in both)


def digests(name: str) -> str:
    rows = ["| workers | digest |", "| --- | --- |"]
    for count in COUNTS:
        found = run(FOLDER / f"{name}.py", count).digests
        rows.append(f"| {count} | {', '.join(f'`{digest[:16]}`' for digest in found)} |")
    return "\n".join(rows)


def difference(name: str) -> str:
    found = largest_difference(name)
    size = "none: the same bits" if not found else f"about 1e{math.ceil(math.log10(found))}"
    return f"Largest difference of a weight to the loop above, in float64: {size}."


def lines(name: str) -> str:
    """The lines that differ from the loop as it was."""
    before, now = (
        path.read_text().split('"""', 2)[2].lstrip().splitlines()  # without the docstring
        for path in (FOLDER / "before" / f"{name}.py", FOLDER / f"{name}.py")
    )
    found = list(difflib.unified_diff(before, now, lineterm="", n=1))[2:]
    gone, new = (
        sum(line[:1] == sign and bool(line[1:].strip()) for line in found) for sign in "-+"
    )
    return "```diff\n" + "\n".join(found) + f"\n```\n\nLines: {gone} go, {new} come."


def script(name: str) -> str:
    return f"```python\n{(FOLDER / f'{name}.py').read_text()}```"


def memory(name: str) -> str:
    """Memory of a cache, as benchmarks/shared_cache.py found it."""
    found = json.loads((ROOT / "benchmarks" / "results" / "shared_cache.json").read_text())
    rows = [
        "| workers | a copy each | held once (`benchmarks/shared_cache.py`) |",
        "| --- | --- | --- |",
    ]
    for row in found["rows"]:
        before, after = row["before_megabytes"], row["after_megabytes"]
        rows.append(f"| {row['workers']} | {before} MiB | {after} MiB |")
    return "\n".join(rows)


PARTS = {
    "digests": digests,
    "difference": difference,
    "lines": lines,
    "script": script,
    "memory": memory,
}
"""By their marker in a page: <!-- lines --> ... <!-- end -->"""


def render(name: str, text: str, parts: tuple[str, ...] = tuple(PARTS)) -> str:
    """A page with those of its parts filled in that it has."""
    for part in parts:
        begin = f"<!-- {part} -->\n"
        if begin in text:
            before, rest = text.split(begin)
            text = (
                before
                + begin
                + PARTS[part](name)
                + "\n<!-- end -->"
                + rest.split("<!-- end -->", 1)[1]
            )
    return text


if __name__ == "__main__":
    for chosen in sys.argv[1:] or EXAMPLES:
        page_of(chosen).write_text(render(chosen, page_of(chosen).read_text()))
        print(page_of(chosen))

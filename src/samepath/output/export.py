"""A run's model for others: as weights, or as a program that needs no samepath and no recipe.

In: a run, which of its weights, a file name. Out: a file (.safetensors, a state_dict .pt, .onnx or
TorchScript), and beside it its card, `NAME.card.json` and `NAME.card.md`.
Guaranteed: keys are those of the plain model (no `_orig_mod.` of torch.compile, no `module.` of a
wrapper); what was written is read back, or run, and compared with the run's model before it gets
its name; no file is written over, and none is left half-written.
"""

from __future__ import annotations

import importlib
import inspect
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from samepath.data import GrainRequest, as_source
from samepath.engine.state.checkpoint import Epoch, weights_of, write_tensors
from samepath.engine.state.reopen import ReopenedRun, reopen
from samepath.errors import SamepathError, UserError
from samepath.files import brief, content_hash, finite, folder_aside, read_tensors, sync_folder
from samepath.output.card import as_markdown, card_of
from samepath.output.model_call import ModelInputs, bare, watch_calls
from samepath.output.predict import refuse_existing
from samepath.threads import limited_threads

Format = Literal["safetensors", "state_dict", "onnx", "torchscript"]
FORMATS: tuple[Format, ...] = get_args(Format)
_BY_ENDING: dict[str, Format] = {
    ".safetensors": "safetensors",
    ".pt": "state_dict",
    ".pth": "state_dict",
    ".onnx": "onnx",
    ".ts": "torchscript",
}
TOLERANCE = 1e-3
"""Relative to the largest output: a program that differs by more is not the run's model."""
MOST_IN_ONE_FILE = 1 << 30
"""Bytes of weights in an .onnx file, which may have 2 GB; more lie beside it."""


@dataclass(frozen=True)
class Exported:
    """A file that was written, its card, and what was found when it was compared."""

    path: Path
    card: Path
    format: Format
    digest: str
    """The digest of the training that the weights are from."""
    weights_digest: str
    sha256: str
    """The SHA-256 of the file."""
    largest_difference: float | None
    """Between its outputs and the run's; None for weights, which are equal to the bit."""
    inputs: list[str]
    """What a program takes: name, type and shape of each."""


def export(
    run: str | Path,
    to: str | Path,
    *,
    format: Format | None = None,
    epoch: Epoch | None = None,
    extra: str | None = None,
) -> Exported:
    """Write a run's model to a file: its newest weights, or those kept after so many epochs, or at
    its best; or those of its extra state of a name (averaged weights)."""
    path = Path(to)
    kind = _format_of(path, format)
    cards = [path.with_name(path.name + ending) for ending in (".card.json", ".card.md")]
    for each in (path, *cards):
        refuse_existing(each, "--to")
    if kind == "onnx":
        _require_onnx()
    opened = reopen(Path(run))
    with limited_threads(opened.config["threads"]), folder_aside(path) as aside:
        model, digest = opened.model(epoch, extra)
        plain = bare(model).eval()
        tensors = clean_keys(weights_of(plain))
        card = card_of(opened, epoch, digest, type(plain).__name__, tensors)
        file = aside / path.name
        if kind in ("safetensors", "state_dict"):
            (_write_safetensors if kind == "safetensors" else _write_state_dict)(file, tensors)
        else:
            card |= _write_program(opened, plain, file, kind)
        if extra is not None:
            card["weights"] = extra
        card |= {"file": path.name, "format": kind, "file_sha256": content_hash(file)}
        (aside / cards[0].name).write_text(json.dumps(finite(card), indent=1) + "\n")
        (aside / cards[1].name).write_text(as_markdown(card))
        # the file itself last: where it is there, all is
        for written in sorted(aside.iterdir(), key=lambda each: each == file):
            with written.open("rb") as content:
                os.fsync(content.fileno())
            written.replace(path.with_name(written.name))
        sync_folder(path.parent)
    return Exported(
        path=path,
        card=cards[1],
        format=kind,
        digest=digest,
        weights_digest=card["weights_digest"],
        sha256=card["file_sha256"],
        largest_difference=card.get("largest_difference"),
        inputs=card.get("inputs", []),
    )


def _format_of(path: Path, asked: Format | None) -> Format:
    kind = asked or _BY_ENDING.get(path.suffix)
    if kind is None:
        raise UserError(
            f"--to {path}: what kind of file is it? End it in .safetensors, .pt, .onnx or "
            f".ts, or add --format ({', '.join(FORMATS)})"
        )
    fits = {"torchscript": (".pt", ".pth", ".ts"), "state_dict": (".pt", ".pth", ".bin")}
    endings = fits.get(kind, (f".{kind}",))
    if path.suffix not in endings:
        raise UserError(f"--to {path}: a file of --format {kind} ends in {' or '.join(endings)}")
    return kind


def clean_keys(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names they have in the plain model, without those that wrappers add: every
    `_orig_mod.` (torch.compile), and a `module.` that all begin with (DataParallel)."""
    found: dict[str, Tensor] = {}
    wrapped = bool(tensors) and all(name.startswith("module.") for name in tensors)
    for name, tensor in tensors.items():
        parts = [part for part in name.split(".") if part != "_orig_mod"]
        clean = ".".join(parts[1:] if wrapped else parts)
        if clean in found:
            raise UserError(f"two tensors of the model would be called {clean!r}; rename one")
        found[clean] = tensor
    return found


# ---- weights


def _write_safetensors(file: Path, tensors: dict[str, Tensor]) -> None:
    write_tensors(file, tensors, {"format": "pt"})  # one word: several have no order
    _refuse_other(read_tensors(file, "pt")[0], tensors, file)


def _write_state_dict(file: Path, tensors: dict[str, Tensor]) -> None:
    with file.open("wb") as content:  # by its name torch would name what is inside
        torch.save(tensors, content)
    _refuse_other(torch.load(file, weights_only=True), tensors, file)


def _refuse_other(read: Mapping[str, Tensor], written: Mapping[str, Tensor], file: Path) -> None:
    same = read.keys() == written.keys() and all(
        torch.equal(read[name].view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8))
        for name, tensor in written.items()
        if tensor.numel()
    )
    if not same:
        raise SamepathError(f"{file.name} does not hold what was written; is the disk failing?")


# ---- programs


def _write_program(run: ReopenedRun, model: nn.Module, file: Path, kind: Format) -> dict[str, Any]:
    """Write a program, and compare what it says of training examples with what the model says, on
    as many examples as it was made with and on fewer."""
    given = _inputs(run, model, 4)
    make = _torchscript if kind == "torchscript" else _onnx
    differences, sizes = [0.0], [1.0]
    try:
        with _quiet(), torch.no_grad():
            ask, inputs, is_free = make(model, given, file)
            for some in (given, _inputs(run, model, 3)) if is_free else (given,):
                expected, found = _leaves(model(*some.args, **some.kwargs)), ask(some)
                shapes = [[tuple(each.shape) for each in answers] for answers in (found, expected)]
                if shapes[0] != shapes[1]:
                    raise UserError(
                        f"the {kind} program returns the shapes {shapes[0]}, and the model "
                        f"{shapes[1]}; export its weights instead"
                    )
                for value, other in zip(expected, found, strict=True):
                    if value.numel():
                        differences.append(float((value.double() - other.double()).abs().max()))
                        sizes.append(float(value.double().abs().max()))
    except SamepathError:
        raise
    except Exception as error:  # torch.export and torch.jit raise whatever the model makes them
        raise UserError(
            f"the model cannot be exported as {kind} ({brief(error)}); export its weights "
            "instead (--to weights.safetensors)"
        ) from error
    largest, scale = float(np.max(differences)), float(np.max(sizes))  # NaN where one is
    if not largest <= TOLERANCE * scale:
        raise UserError(
            f"the {kind} program's outputs differ by {largest:.3g} from the model's (up to "
            f"{scale:.3g}): it is not the same model; export its weights instead"
        )
    return {
        "inputs": inputs,
        "outputs": [f"output_{number}: {_words(value)}" for number, value in enumerate(expected)],
        "largest_difference": largest,
    }


def _inputs(run: ReopenedRun, model: nn.Module, number: int) -> ModelInputs:
    """What the loss gives the model for the first training examples, in its first call."""
    source = as_source(run.recipe.train, seed=0, collate=run.recipe.collate)
    rows = np.arange(number, dtype=np.int64) % len(source)
    batch = next(iter(source.load(iter([GrainRequest(-1, rows)]))))
    first = watch_calls(run.recipe, model, batch)[0]
    # Hugging Face models take labels to compute a loss, which a program is not asked for
    kwargs = {name: value for name, value in first.kwargs.items() if name != "labels"}
    return ModelInputs(first.args, kwargs)


Ask = Callable[[ModelInputs], list[Tensor]]
Program = tuple[Ask, list[str], bool]
"""How to run it, what it takes, and whether it takes any number of examples."""


def _torchscript(model: nn.Module, given: ModelInputs, file: Path) -> Program:
    how: dict[str, Any] = {"example_inputs": given.args} if given.args else {}
    if given.kwargs:
        if given.args:
            raise UserError(
                "the loss calls the model with positional and named arguments, which TorchScript's "
                "tracing does not take together; call it with either"
            )
        how = {"example_kwarg_inputs": given.kwargs}
    traced = torch.jit.trace(model, check_trace=False, strict=False, **how)
    with file.open("wb") as content:
        torch.jit.save(traced, content)
    loaded = torch.jit.load(str(file))

    def ask(some: ModelInputs) -> list[Tensor]:
        return _leaves(loaded(*some.args, **some.kwargs))

    names = [f"input_{n}" for n in range(len(given.args))] + list(given.kwargs)
    taken = zip(names, [*given.args, *given.kwargs.values()], strict=True)
    return ask, [f"{name}: {_words(v)}" for name, v in taken if isinstance(v, Tensor)], True


def _require_onnx() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise UserError(
                f"--to model.onnx needs {name}, which is not installed; "
                "type: pip install 'samepath[onnx]'"
            ) from None


def _onnx(model: nn.Module, given: ModelInputs, file: Path) -> Program:
    """Write an ONNX program whose number of examples is free where the model's code allows it."""
    import onnxruntime

    bound = inspect.signature(model.forward).bind(*given.args, **given.kwargs).arguments
    torch.onnx.export(
        model,
        given.args,
        str(file),
        kwargs=given.kwargs or None,
        dynamo=True,
        verbose=False,
        dynamic_shapes={name: _free(value) for name, value in bound.items()},
        external_data=sum(t.nbytes for t in model.state_dict().values()) > MOST_IN_ONE_FILE,
    )
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def ask(some: ModelInputs) -> list[Tensor]:
        by_name = all(name in some.kwargs for name in names)
        values = [some.kwargs[name] for name in names] if by_name else _tensors(some)
        arrays = [value.numpy() for value in values]
        found = session.run(None, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(np.asarray(value)) for value in found]

    taken = session.get_inputs()
    free = all(isinstance(size, str) for each in taken for size in each.shape[:1])
    return ask, [f"{each.name}: {_onnx_words(each)}" for each in taken], free


def _onnx_words(taken: Any) -> str:
    sizes = ["N" if isinstance(size, str) else str(size) for size in taken.shape]
    return f"{taken.type.removeprefix('tensor(').removesuffix(')')} {' x '.join(sizes)}"


def _free(value: Any) -> Any:
    """Leave the number of examples open in every tensor of an argument."""
    if isinstance(value, Tensor):
        return {0: torch.export.Dim.AUTO} if value.ndim else None
    if isinstance(value, Mapping):
        return {name: _free(item) for name, item in value.items()}
    return tuple(map(_free, value)) if isinstance(value, (tuple, list)) else None


def _tensors(given: ModelInputs) -> list[Tensor]:
    return _leaves([*given.args, *given.kwargs.values()])


def _leaves(answer: Any) -> list[Tensor]:
    """The tensors in what a model returned, in order."""
    if isinstance(answer, Tensor):
        return [answer]
    items = answer.values() if isinstance(answer, Mapping) else answer
    if not isinstance(answer, (Mapping, tuple, list)):
        return []
    return [leaf for item in items for leaf in _leaves(item)]


def _words(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return " x ".join([f"{kind} N", *map(str, tensor.shape[1:])]) if tensor.ndim else kind


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what exporters say about their own insides; what matters is compared afterwards."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)

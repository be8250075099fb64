"""What the evidence says about why two runs part, and what to do about it.

In: where they part, for which grain and in which module, and whether a run is even repeatable.
Out: a Cause in words. It is a likely cause: evidence rules things out, it does not read code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from samepath.engine.verify.compare import GrainParting, Parting


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was found out."""

    parting: Parting
    event: GrainParting | None
    """The first event that differs for the same grain of that step, if one does."""
    repeatable: bool
    """The same worker count, run again, gave the same bits."""
    reproduced: bool
    """The difference was there again when the runs were repeated to look into it."""
    resumed_at: int | None = None
    """The step after which one of the runs was continued from a checkpoint; None where none was."""
    same_batch_gradient: bool = True
    """The gradient summed over the batch agrees."""
    data_in_memory: bool = False
    """The training data are tensors, not a Dataset's items."""
    kinds: Mapping[str, str]
    """Class names by module name."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why, and what to do."""

    where: str
    """One word for machines: initial weights, data, augment, module, loss, gradient, ..."""
    module: str | None = None
    """The first module whose output differs for the same grain, or the one that makes an input, a
    buffer or a gradient differ."""
    found: str
    """What was seen, in a sentence."""
    likely: str
    remedy: str


_OUTSIDE = "the process id, the time, or a generator without a fixed seed"
_GLOBAL = "torch's, numpy's or Python's global generator"


AT_END = ("message", "digest")
"""Names of differences that no step shows."""


def explain(evidence: Evidence) -> Cause:
    """The likely cause."""
    if not evidence.reproduced:
        return _not_reproduced(evidence)
    name = evidence.parting.name
    if name in AT_END or name.startswith("logged "):
        return _only_at_end(evidence)
    if evidence.resumed_at is not None and evidence.repeatable:
        return _after_resuming(evidence, evidence.resumed_at)
    return _stage(evidence)


def _stage(evidence: Evidence) -> Cause:
    """Name the stage by the first thing that differs."""
    if evidence.parting.step == 0:
        return _before_training(evidence)
    if evidence.event is not None:
        point = evidence.event.event.point
        return _BY_POINT.get(point, _in_module)(evidence, evidence.event)
    if evidence.parting.name.startswith("valid "):
        return _metrics_only(evidence)
    return _after_the_grains(evidence)


def _draws_or_keeps(evidence: Evidence, what: str) -> str:
    """Randomness from outside changes from run to run; state that is kept repeats itself."""
    if evidence.repeatable:
        return (
            f"{what} keeps something from one call to the next (a counter, a cache, a generator "
            "of its own) or reads the worker's number"
        )
    return f"{what} depends on {_OUTSIDE}"


def _not_reproduced(evidence: Evidence) -> Cause:
    return Cause(
        where="unknown",
        found="when the runs were repeated to look into that step, they did not part there",
        likely=f"something depends on {_OUTSIDE}, and does not show every time",
        remedy="run verify again with more --steps, or -n 1,1 to see how often one worker alone "
        "leaves its path",
    )


def _only_at_end(evidence: Evidence) -> Cause:
    return Cause(
        where="end",
        found="everything that is compared after each step agrees, and what the runs leave does "
        "not",
        likely="samepath does not look at everything it saves or logs: it is our fault",
        remedy="please report it with this recipe",
    )


def _after_resuming(evidence: Evidence, resumed_at: int) -> Cause:
    """Runs that were not interrupted agree; one that was saved and continued does not."""
    if evidence.parting.step == resumed_at:
        return Cause(
            where="resume",
            found=f"the state that was saved after step {resumed_at} is not what was read back",
            likely="state_dict() and load_state_dict() of the optimizer, the schedule or a module "
            "do not fit each other, or model() makes something that is not in the state",
            remedy="let load_state_dict() restore all that state_dict() gave",
        )
    stage = _stage(evidence)
    return Cause(
        where="resume",
        module=stage.module,
        found=f"the state that was saved after step {resumed_at} is read back as it was, and then "
        + stage.found,
        likely="something is kept from step to step that a checkpoint does not hold: an attribute "
        "of the optimizer, the schedule or a module, a global of the recipe's file",
        remedy="keep it where state_dict() finds it: in a buffer (register_buffer), in the "
        "optimizer's state or groups, in the schedule's attributes",
    )


def _before_training(evidence: Evidence) -> Cause:
    if evidence.parting.name in ("groups", "schedule"):
        return Cause(
            where="settings",
            found="the optimizer's settings or its schedule differ before the first step",
            likely="optimizer() or schedule() " + _read_or_draw(evidence),
            remedy="make learning rate and schedule from the recipe's own numbers; samepath keeps "
            "the batch, so they need not change with workers",
        )
    return Cause(
        where="initial weights",
        found="the weights differ before the first step",
        likely="model() " + _read_or_draw(evidence),
        remedy=f"in model(), draw from {_GLOBAL} (samepath sets them from --seed), or load the "
        "weights from a file",
    )


def _read_or_draw(evidence: Evidence) -> str:
    if evidence.repeatable:
        return "reads the number of workers or how they were started (WORLD_SIZE, RANK)"
    return f"depends on {_OUTSIDE}"


def _loaded(evidence: Evidence, event: GrainParting) -> Cause:
    which = "valid" if event.validation else "train"
    if evidence.data_in_memory:
        likely = f"recipe() makes the tensors of `{which}` anew on every worker, and "
        likely += _read_or_draw(evidence)
        remedy = "load the data from a file, or make them with a seeded generator: "
        remedy += "torch.Generator().manual_seed(0)"
    else:
        likely = _draws_or_keeps(evidence, f"the Dataset of `{which}`")
        remedy = f"in __getitem__, draw from {_GLOBAL} (samepath keys them by seed, epoch and "
        remedy += "example) and keep nothing between items"
    return Cause(
        where="data",
        found=f"{_grain(event)} is loaded with other data",
        likely=likely,
        remedy=remedy,
    )


def _weight(evidence: Evidence, event: GrainParting) -> Cause:
    return Cause(
        where="weight",
        found=f"{_grain(event)} has the same data but another weight in the batch",
        likely=_draws_or_keeps(evidence, "weight()"),
        remedy="compute the weight from the grain's data alone",
    )


def _augmented(evidence: Evidence, event: GrainParting) -> Cause:
    return Cause(
        where="augment",
        found=f"{_grain(event)} is loaded with the same data and augmented differently",
        likely=_draws_or_keeps(evidence, "augment()")
        + ("; global generators are such state here" if evidence.repeatable else ""),
        remedy="in augment(batch, draws), take every random number from `draws`: they are keyed by "
        "seed, epoch and example",
    )


def _in_module(evidence: Evidence, event: GrainParting) -> Cause:
    """The output of a module differs, or what its parent (or loss()) hands to it."""
    point, name, inside, _ = event.event
    if point == "output":
        module: str | None = name
        found = f"for {_grain(event)} its output differs though its input is the same"
    elif point == "buffer":
        module = name.rpartition(".")[0]
        found = f"for {_grain(event)} it leaves its buffer {name!r} differently"
    else:
        module = inside
        does = "gets another input" if point == "input" else "is called in one run only"
        found = f"for {_grain(event)} {_named(name, evidence.kinds)} {does}, while everything "
        found += "before it is the same"
    if module is None:
        return _in_function(evidence, found, validation=event.validation)
    return Cause(
        where="module",
        module=module,
        found=found,
        likely=_draws_or_keeps(evidence, f"forward() of {_named(module, evidence.kinds)}"),
        remedy="keep state in a float buffer (register_buffer), which samepath averages over "
        "grains, or make it depend on the input alone"
        if evidence.repeatable
        else f"draw from {_GLOBAL} (torch.rand, F.dropout): samepath keys them by seed, step and "
        "grain",
    )


def _in_loss(evidence: Evidence, event: GrainParting) -> Cause:
    found = f"for {_grain(event)} all modules' outputs agree and the result differs"
    return _in_function(evidence, found, validation=event.validation)


def _in_function(evidence: Evidence, found: str, *, validation: bool) -> Cause:
    function = "evaluate() (or loss(), without one)" if validation else "loss()"
    return Cause(
        where="evaluate" if validation else "loss",
        found=found,
        likely=_draws_or_keeps(evidence, function),
        remedy=f"compute it from the model and the batch alone, with randomness from {_GLOBAL}",
    )


def _gradient(evidence: Evidence, event: GrainParting) -> Cause:
    name = event.event.name
    what = repr(name) if event.event.point == "gradient" else f"the output of {name!r}"
    found = f"for {_grain(event)} the forward pass agrees and the gradient of {what} differs"
    # a backward pass goes through modules in reverse: the last one it entered is the suspect
    entered = [e.name for e in event.agreed if e.point == "backward"]
    if entered:
        suspect = _named(entered[-1], evidence.kinds)
        found += f", while the gradient of the output of {suspect} still agrees"
    return Cause(
        where="gradient",
        module=entered[-1] if entered else None,
        found=found,
        likely="between the two, "
        + _draws_or_keeps(evidence, "a backward pass of the recipe's own")
        + " (torch.autograd.Function, a gradient hook); or a kernel is not deterministic",
        remedy="replace it with torch's own operations; what backward() needs from forward() "
        "belongs in ctx.save_for_backward",
    )


def _metrics_only(evidence: Evidence) -> Cause:
    return Cause(
        where="evaluate",
        found="the weights agree and a validation metric differs",
        likely=_draws_or_keeps(evidence, "evaluate() or weight()"),
        remedy="return means over the given examples that depend on the model and them alone",
    )


def _after_the_grains(evidence: Evidence) -> Cause:
    if evidence.same_batch_gradient:
        return Cause(
            where="update",
            found="every grain and the summed gradient agree, and the update differs",
            likely=_draws_or_keeps(evidence, "the optimizer or the schedule"),
            remedy="try torch.optim.SGD in its place; if that agrees, make the optimizer depend "
            "on gradients and its state alone",
        )
    return Cause(
        where="sum",
        found="every grain's gradient agrees and their sum differs",
        likely="a hook on a parameter (register_post_accumulate_grad_hook) changes .grad between "
        "grains, or samepath adds in the wrong order",
        remedy="remove such hooks (clip_norm clips); if there are none, please report it with "
        "this recipe: it is our fault",
    )


_BY_POINT: dict[str, Callable[[Evidence, GrainParting], Cause]] = {
    "loaded": _loaded,
    "weight": _weight,
    "augmented": _augmented,
    "loss": _in_loss,
    "metrics": _in_loss,
    "gradient": _gradient,
    "backward": _gradient,
}
"""Inputs, outputs, calls and buffers are a module's."""


def _grain(event: GrainParting) -> str:
    return f"{'validation ' if event.validation else ''}grain {event.grain}"


def _named(module: str, kinds: Mapping[str, str]) -> str:
    kind = kinds.get(module, "?")
    return f"{module!r} ({kind})" if module else f"the model itself ({kind})"

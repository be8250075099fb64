"""What the evidence says about why two runs part, and what to do about it.

In: where they part, for which grain and in which module, and whether a run is even repeatable.
Out: a Cause in words. It is a likely cause: evidence rules things out, it does not read code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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


AT_END = ("message", "digest")
"""Names of differences that no step shows."""
_OUTSIDE = "the process id, the time, or a generator without a fixed seed"
_GLOBAL = "torch's, numpy's or Python's global generator"

_UNKNOWN = Cause(
    where="unknown",
    found="when the runs were repeated to look into that step, they did not part there",
    likely=f"something depends on {_OUTSIDE}, and does not show every time",
    remedy="run verify again with more --steps, or -n 1,1 to see how often one worker alone leaves "
    "its path",
)
_ONLY_AT_END = Cause(
    where="end",
    found="everything that is compared after each step agrees, and what the runs leave does not",
    likely="samepath does not look at everything it saves or logs: it is our fault",
    remedy="please report it with this recipe",
)
_NOT_READ_BACK = Cause(
    where="resume",
    found="the state that was saved is not what was read back",
    likely="state_dict() and load_state_dict() of the optimizer, the schedule or a module do not "
    "fit each other, or model() makes something that is not in the state",
    remedy="let load_state_dict() restore all that state_dict() gave",
)
_LOST_BY_SAVING = Cause(
    where="resume",
    found="the state that was saved is read back as it was, and then ",
    likely="something is kept from step to step that a checkpoint does not hold: an attribute of "
    "the optimizer, the schedule or a module, a global of the recipe's file",
    remedy="keep it where state_dict() finds it: in a buffer (register_buffer), in the optimizer's "
    "state or groups, in the schedule's attributes",
)

# In what follows, {keeps} and {reads} go on to say how: see `_stage`.
_SETTINGS = Cause(
    where="settings",
    found="the optimizer's settings or its schedule differ before the first step",
    likely="optimizer() or schedule() {reads}",
    remedy="make learning rate and schedule from the recipe's own numbers; samepath keeps the "
    "batch, so they need not change with workers",
)
_WEIGHTS = Cause(
    where="initial weights",
    found="the weights differ before the first step",
    likely="model() {reads}",
    remedy=f"in model(), draw from {_GLOBAL} (samepath sets them from --seed), or load the weights "
    "from a file",
)
_DATA = Cause(
    where="data",
    found="{grain} is loaded with other data",
    likely="the Dataset of `{split}` {keeps}",
    remedy=f"in __getitem__, draw from {_GLOBAL} (samepath keys them by seed, epoch and example) "
    "and keep nothing between items",
)
_DATA_IN_MEMORY = replace(
    _DATA,
    likely="recipe() makes the tensors of `{split}` anew on every worker, and {reads}",
    remedy="load the data from a file, or make them with a seeded generator: "
    "torch.Generator().manual_seed(0)",
)
_MODULE = Cause(
    where="module",
    found="for {grain} ",
    likely="forward() of {module} {keeps}",
    remedy=f"draw from {_GLOBAL} (torch.rand, F.dropout): samepath keys them by seed, step and "
    "grain",
)
_MODULE_KEEPS = replace(
    _MODULE,
    remedy="keep state in a float buffer (register_buffer), which samepath averages over grains, "
    "or make it depend on the input alone",
)
_FUNCTION = Cause(
    where="loss",
    found="for {grain} all modules' outputs agree and the result differs",
    likely="loss() {keeps}",
    remedy=f"compute it from the model and the batch alone, with randomness from {_GLOBAL}",
)
_GRADIENT = Cause(
    where="gradient",
    found="for {grain} the forward pass agrees and the gradient of {what} differs",
    likely="between the two, a backward pass of the recipe's own {keeps} "
    "(torch.autograd.Function, a gradient hook); or a kernel is not deterministic",
    remedy="replace it with torch's own operations; what backward() needs from forward() belongs "
    "in ctx.save_for_backward",
)
_BY_POINT = {
    "loaded": _DATA,
    "weight": Cause(
        where="weight",
        found="{grain} has the same data but another weight in the batch",
        likely="weight() {keeps}",
        remedy="compute the weight from the grain's data alone",
    ),
    "augmented": Cause(
        where="augment",
        found="{grain} is loaded with the same data and augmented differently",
        likely="augment() {keeps}, or draws from a global generator",
        remedy="in augment(batch, draws), take every random number from `draws`: they are keyed by "
        "seed, epoch and example",
    ),
    "loss": _FUNCTION,
    "encoded": replace(_FUNCTION, where="encode", likely="encode() {keeps}"),
    "metrics": _FUNCTION,
    "gradient": _GRADIENT,
    "backward": _GRADIENT,
}
"""Inputs, outputs, calls and buffers are a module's."""
_METRICS_ONLY = Cause(
    where="evaluate",
    found="the weights agree and a validation metric differs",
    likely="evaluate() or weight() {keeps}",
    remedy="return means over the given examples that depend on the model and them alone",
)
_UPDATE = Cause(
    where="update",
    found="every grain and the summed gradient agree, and the update differs",
    likely="the optimizer or the schedule {keeps}",
    remedy="try torch.optim.SGD in its place; if that agrees, make the optimizer depend on "
    "gradients and its state alone",
)
_SUM = Cause(
    where="sum",
    found="every grain's gradient agrees and their sum differs",
    likely="a hook on a parameter (register_post_accumulate_grad_hook) changes .grad between "
    "grains, or samepath adds in the wrong order",
    remedy="remove such hooks (clip_norm clips); if there are none, please report it with this "
    "recipe: it is our fault",
)


_IN_SCRIPTS = {
    "settings": (
        "the script makes the optimizer or its schedule from something that is not the same at "
        "every worker count (WORLD_SIZE, session.num_workers, the time)",
        "make learning rate and schedule from numbers of your own; samepath keeps the batch, so "
        "they need not change with workers",
    ),
    "initial weights": (
        "the script makes the model before samepath.start(), from a generator of its own, or from "
        "something that is not the same at every worker count",
        "make the model after samepath.start(), which sets the generators from the seed",
    ),
}
"""What is likely, and a remedy, where a script takes the place of a recipe's functions."""
_BETWEEN = Cause(
    where="between steps",
    found="the state after the step before agrees, and before this one it does not",
    likely="what the script does to the model or the optimizer between steps depends on the "
    "worker's number, on the number of workers, or on something computed from one worker's part",
    remedy="do it alike on every worker, from what is the same on all: the result of trainer.step, "
    "trainer.evaluate, and random numbers of torch, numpy and Python",
)
_CONTROL = Cause(
    where="control flow",
    found="the scripts do other things from here on: {mine} in one run, {yours} in the other",
    likely="a condition of the loop depends on the time, the worker's number, the number of "
    "workers, or on something computed from one worker's part",
    remedy="decide by what is the same on every worker: the result of trainer.step or "
    "trainer.evaluate",
)
_PRINTED = Cause(
    where="output",
    found="weights, losses and metrics agree, and what is printed does not: {mine!r} against "
    "{yours!r}",
    likely="the script prints something that one worker computed from its own part, or the number "
    "of workers",
    remedy="print what trainer.step and trainer.evaluate return (the same on every worker); what "
    "belongs to one machine goes to standard error",
)
_WRITTEN = Cause(
    where="files",
    found="weights, losses and metrics agree, and the file {mine!r} does not",
    likely="several workers write it, or it holds something that one worker computed from its own "
    "part",
    remedy="write on the first worker alone (if session.is_first), and what trainer.step and "
    "trainer.evaluate return",
)
OF_SCRIPTS = {"between": _BETWEEN, "other": _CONTROL, "printed": _PRINTED, "written": _WRITTEN}


def explain_script(evidence: Evidence) -> Cause:
    """The likely cause within a step of a script's trainer, or before its first."""
    cause = explain(evidence)
    likely, remedy = _IN_SCRIPTS.get(cause.where, (cause.likely, cause.remedy))
    return replace(cause, likely=likely, remedy=remedy)


def explain(evidence: Evidence) -> Cause:
    """The likely cause."""
    name = evidence.parting.name
    if not evidence.reproduced:
        return _UNKNOWN
    if name in AT_END or name.startswith("logged "):
        return _ONLY_AT_END
    stage = _stage(evidence)
    if evidence.resumed_at is None or not evidence.repeatable:
        return stage
    # runs that were not interrupted agree; one that was saved and continued does not
    if evidence.parting.step == evidence.resumed_at:
        return _NOT_READ_BACK
    found = _LOST_BY_SAVING.found + stage.found
    return replace(_LOST_BY_SAVING, module=stage.module, found=found)


def _stage(evidence: Evidence) -> Cause:
    """Name the stage by the first thing that differs."""
    # randomness from outside changes from run to run; state that is kept repeats itself
    keeps = reads = f"depends on {_OUTSIDE}"
    if evidence.repeatable:
        reads = "reads the number of workers or how they were started (WORLD_SIZE, RANK)"
        keeps = "keeps something from one call to the next (a counter, a cache, a generator of "
        keeps += "its own) or reads the worker's number"
    words = {"keeps": keeps, "reads": reads}
    if evidence.parting.step == 0:
        is_setting = evidence.parting.name in ("groups", "schedule")
        cause = _SETTINGS if is_setting else _WEIGHTS
    elif evidence.event is not None:
        cause = _of_grain(evidence, evidence.event, words)
    elif evidence.parting.name.startswith("valid "):
        cause = _METRICS_ONLY
    else:
        cause = _UPDATE if evidence.same_batch_gradient else _SUM
    return replace(
        cause, found=cause.found.format_map(words), likely=cause.likely.format_map(words)
    )


def _of_grain(evidence: Evidence, parting: GrainParting, words: dict[str, str]) -> Cause:
    """Blame the first event of a grain that differs; adds to `words` what the cause names."""
    point, name, inside, _ = parting.event
    words["grain"] = f"{'validation ' if parting.validation else ''}grain {parting.grain}"
    words["split"] = "valid" if parting.validation else "train"
    module, cause = None, _BY_POINT.get(point)
    if point == "loaded" and evidence.data_in_memory:
        cause = _DATA_IN_MEMORY
    elif cause is _GRADIENT:
        words["what"] = repr(name) if point == "gradient" else f"the output of {name!r}"
        # a backward pass goes through modules in reverse: the last one it entered is the suspect
        for module in [e.name for e in parting.agreed if e.point == "backward"][-1:]:
            words["module"] = _named(module, evidence.kinds)
            found = ", while the gradient of the output of {module} still agrees"
            cause = replace(_GRADIENT, module=module, found=_GRADIENT.found + found)
    elif cause is None:
        if point == "output":
            module, found = name, "its output differs though its input is the same"
        elif point == "buffer":
            module, found = name.rpartition(".")[0], "it leaves its buffer {what} differently"
            words["what"] = repr(name)
        else:  # what its parent, or loss(), hands to a module
            does = "gets another input" if point == "input" else "is called in one run only"
            module, found = inside, f"{{what}} {does}, while everything before it is the same"
            words["what"] = _named(name, evidence.kinds)
        blamed = _MODULE_KEEPS if evidence.repeatable else _MODULE
        if module is None:
            blamed = _FUNCTION
        else:
            words["module"] = _named(module, evidence.kinds)
        cause = replace(blamed, module=module, found="for {grain} " + found)
    if cause.where == "loss" and parting.validation:
        likely = "evaluate() (or loss(), without one) {keeps}"
        cause = replace(cause, where="evaluate", likely=likely)
    return cause


def _named(module: str, kinds: Mapping[str, str]) -> str:
    kind = kinds.get(module, "?")
    return f"{module!r} ({kind})" if module else f"the model itself ({kind})"

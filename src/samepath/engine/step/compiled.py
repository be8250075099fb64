"""Compiled grains: the loss of a grain, and with it the model, as code of `torch.compile`.

In: a loss function. Out: one that computes it with compiled code. Guaranteed: the code depends
on the shapes of a grain, on the plan and on the machine, not on the order in which a worker meets
shapes (which torch would otherwise make dynamic), nor on timings; random numbers are those of eager
code, which are keyed by grain. Where torch would give up and go on eagerly it raises. All of this
holds for models that a person has compiled himself, too.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import nn

from samepath.errors import UserError
from samepath.recipe import Loss

MOST_VERSIONS = 64
"""The most versions of one function's code in one process: shapes, train and eval mode, models that
share a loss."""


def settle_compiler() -> None:
    """Set what compiled code depends on for this process, if torch's compiler is loaded (it is by
    whoever compiles, and then this costs nothing)."""
    if "torch._dynamo" not in sys.modules:
        return
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    settings: dict[Any, dict[str, Any]] = {
        dynamo: {
            "automatic_dynamic_shapes": False,  # the second shape would get other code
            "assume_static_by_default": True,
            "specialize_float": True,
            "recompile_limit": MOST_VERSIONS,
            "fail_on_recompile_limit_hit": True,  # not: eager from here on, on some workers
            "suppress_errors": False,
        },
        inductor: {
            "fallback_random": True,  # torch's generators, which are set for every grain
            "deterministic": True,  # nothing is chosen by timing it
            "max_autotune": False,
            "compile_threads": 1,  # workers are processes enough
        },
    }
    for module, values in settings.items():
        for name, value in values.items():
            setattr(module, name, value)
    inner = r"torch\._(dynamo|inductor|functorch)"  # what torch's parts tell each other
    warnings.filterwarnings("ignore", category=FutureWarning, module=inner)


def refuse_without_compiler() -> None:
    """Raise if there is no C++ compiler for torch to use."""
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        names = ", ".join(name for name in config.cpp.cxx if name)
        raise UserError(
            f"compile needs a C++ compiler, and there is none (looked for {names}); install g++ or "
            "clang++, name one in CXX, or train without compile"
        ) from None


def compiled(loss: Loss) -> Loss:
    """Compile a loss and the model it calls, once for every shape of a grain."""
    refuse_without_compiler()
    fast = torch.compile(loss, dynamic=False)
    settle_compiler()

    def compute(model: nn.Module, data: Any) -> Any:
        try:
            return fast(model, data)
        except torch._dynamo.exc.FailOnRecompileLimitHit as error:
            raise UserError(
                f"the loss or the model was compiled {MOST_VERSIONS} times, each time because "
                "something had changed: keep numbers that change during training in tensors "
                "(buffers), or train without compile"
            ) from error

    return compute

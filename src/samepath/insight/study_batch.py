"""The critical batch of a study: a race of strategies, then branches of its sequential run.

In: a StudyRequest. Out: a Study with a MeasuredBatch. Guaranteed: bad input raises before anything
is written; an interruption is gone on with in the study's folder, the branches in `branches/`; they
are of the rate the study uses, and of no target: none ends early because the loss is low.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from samepath.console import Watcher
from samepath.engine.run.options import Options
from samepath.insight.advise.branches import (
    BranchPlan,
    BranchRequest,
    measure_batch,
    plan_branches,
)
from samepath.insight.folder import BRANCHES
from samepath.study.opening import StudyRequest, look_into
from samepath.study.results import Study
from samepath.timing.model import Clock


def plans_for(requests: Sequence[StudyRequest]) -> list[BranchPlan]:
    """Plan the branches of each study, before the first of them is raced."""
    plans = []
    for each in requests:
        options = _without_ends(look_into(each).options)
        plans.append(plan_branches(BranchRequest(on=each.on, in_study=True), options))
    return plans


def with_measured_batch(
    study: Study, request: StudyRequest, plan: BranchPlan, watcher: Watcher
) -> Study:
    """Measure the critical batch of a study that was raced."""
    opened = look_into(request)
    rate = None if study.rate.how == "recipe" else study.rate.value
    step_seconds, _ = Clock(study.clock).step_seconds(batch_size=study.batch_size, workers=1)
    found = measure_batch(
        plan,
        opened.recipe,
        replace(_without_ends(opened.options), learning_rate=rate),
        request.folder / BRANCHES,
        step_seconds,
        watcher,
        request.command,
    )
    return replace(study, measured_batch=found)


def _without_ends(options: Options) -> Options:
    return replace(options, target=None, patience=None, stop_patience=None, hold=1)

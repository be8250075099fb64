"""The fuzzer for the promise, for as long as you like.

Random small models, losses, data, schedules and training options out of PyTorch's own parts, each
trained at 1 worker (in process), 2 and 3 (over shared memory and over sockets) with a resume on the
way; digests compared with each other, and gradients with a plain backward pass. What fails is made
as small as possible and printed.

    python benchmarks/fuzz_promise.py --minutes 60 --seed 1
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from about import commit
from samepath.engine.run.session import start
from samepath.timing.stopwatch import machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "parity"))
from promise_fuzz import SEED, Crew, Spec, problems, specs

AT_ONCE = 200
"""Specs between two looks at the clock."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began, tried, failures = time.monotonic(), 0, list[dict[str, Any]]()
    number = arguments.seed
    with start(seed=SEED) as session, Crew(2) as two, Crew(3) as three, Crew(3, "network") as far:

        def attempt() -> None:
            @seed(number)
            @settings(
                max_examples=AT_ONCE,
                deadline=None,
                database=None,
                derandomize=False,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
            )
            @given(spec=specs())
            def keeps(spec: Spec) -> None:
                nonlocal tried
                tried += 1
                found = problems(spec, session, [two, three, far])
                assert not found, f"{spec}: {found}"

            keeps()

        while time.monotonic() - began < 60 * arguments.minutes:
            try:
                attempt()
            except Exception as error:  # whatever it is, it is what was looked for
                failures.append({"seed": number, "error": f"{type(error).__name__}: {error}"})
                print(failures[-1]["error"], flush=True)
            number += 1000
            minutes = (time.monotonic() - began) / 60
            print(f"{minutes:.0f} min: {tried} trainings, {len(failures)} failures", flush=True)
    found = {
        "trainings": tried,
        "failures": failures,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "seed": arguments.seed,
        "machine": machine(),
        "commit": commit(),
    }
    path = Path(__file__).parent / "results" / "fuzz_promise.json"
    path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""A step and a clock that were never measured, for tests of what is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samepath.timing.links import NetworkFacts
from samepath.timing.measured import ClockFacts, MeasuredStep


def link(bytes_per_second: float, latency_seconds: float) -> NetworkFacts:
    return NetworkFacts(
        name="x",
        how="measured",
        bytes_per_second=bytes_per_second,
        latency_seconds=latency_seconds,
    )


LINK = link(1e9, 1e-4)


def made(**changes: Any) -> MeasuredStep:
    """A step of 8 examples in grains of 4: 10 ms a grain of 4, 6 of 2, 5 of 1; 2 ms update."""
    return replace(
        MeasuredStep(
            recipe="made up",
            identity="made up",
            machine="imagined",
            device="cpu",
            threads=1,
            batch_size=8,
            grain_size=4,
            grain_fixed=False,
            num_examples=100,
            grain_times={"1": (0.005,) * 3, "2": (0.006,) * 3, "4": (0.009, 0.010, 0.012)},
            update_seconds=0.002,
            tensor_names=("b", "a"),
            tensor_bytes=(400, 600),
            tensor_ready=(0.5, 1.0),
            crowding={"2": 1.25},
            local=LINK,
            network=LINK,
            step_seconds={"1": 0.022, "2": 0.016},
            busy_cores=0.0,
        ),
        **changes,
    )


def made_clock(**changes: Any) -> ClockFacts:
    """The same step as a study keeps it, over a link of 1 MB/s and 1 ms."""
    return replace(
        ClockFacts(
            network=link(1e6, 1e-3),
            local=link(1e6, 1e-3),
            gradient_bytes=1000,
            tensor_bytes=(400, 600),
            tensor_ready=(0.5, 1.0),
            buffer_bytes=0,
            crowding={},
            serial_seconds=0.002,
            grain_seconds={"1": 0.005, "2": 0.006, "4": 0.010},
            measured_step_seconds={},
            threads=1,
            machine="imagined",
            grain_size=4,
            grain_fixed=False,
            busy_cores=0.0,
        ),
        **changes,
    )

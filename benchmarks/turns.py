"""Contestants that take turns, each in processes of its own.

A contestant is one worker process or several. Each gets, on its standard input, how many steps to
take, and answers with a line of JSON. While one takes its steps the others wait for input, so that
every contestant has the machine to itself and the memory settings that its user would have.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK_SECONDS = 2.0
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Contestant:
    """What its processes are told, and how many there are."""

    request: dict[str, Any]
    num_workers: int = 1
    apart: bool = False
    """Its processes know nothing of each other."""
    threads: int = 1


_ports = itertools.count(29500)
"""In namespaces, where nothing else listens: below the ports that connections are given there."""


class Crew:
    """A contestant's processes, which wait for their turn."""

    def __init__(self, contestant: Contestant, script: Path, machines: Sequence[str] = ()) -> None:
        """`machines`: network namespaces, one for each worker."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = next(_ports) if machines else free.getsockname()[1]
        self._processes = []
        for worker in range(contestant.num_workers):
            group = not contestant.apart and contestant.num_workers > 1
            variables = {"OMP_NUM_THREADS": str(contestant.threads)}
            if group:
                variables |= {
                    "RANK": str(worker),
                    "WORLD_SIZE": str(contestant.num_workers),
                    "LOCAL_RANK": "0" if machines else str(worker),
                    "LOCAL_WORLD_SIZE": "1" if machines else str(contestant.num_workers),
                    "MASTER_ADDR": "10.77.0.1" if machines else "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "TORCH_CPP_LOG_LEVEL": "ERROR",  # namespaces have no names, and torch says so
                }
            if machines:
                variables |= {"GLOO_SOCKET_IFNAME": "eth0", "SAMEPATH_LINK": "network"}
            inside = ["ip", "netns", "exec", machines[worker]] if machines else []
            self._processes.append(
                subprocess.Popen(
                    [*inside, sys.executable, str(script), json.dumps(contestant.request)],
                    env=os.environ | variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        self.answers()

    def ask(self, word: str | int) -> list[Any]:
        """Tell all of them a word, and wait for what they answer."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
        return self.answers()

    def answers(self) -> list[Any]:
        found = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"{process.args!r} ended with {process.wait()}")
            found.append(json.loads(line))
        return found

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def crews(
    contestants: dict[str, Contestant], script: Path, machines: Sequence[str] = ()
) -> Iterator[dict[str, Crew]]:
    """The contestants' processes; they end with the context."""
    started: dict[str, Crew] = {}
    try:
        for name, contestant in contestants.items():
            started[name] = Crew(contestant, script, machines)
        yield started
    finally:
        for crew in started.values():
            crew.close()


def take_turns(started: dict[str, Crew], rounds: int) -> Times:
    """Seconds per step of each contestant's slowest worker: blocks of steps in alternating order,
    after a round that warms up and sets the length of a block."""
    times: Times = {name: [] for name in started}
    blocks: dict[str, int] = {}
    for name, crew in started.items():
        crew.ask(3)
        blocks[name] = max(1, round(BLOCK_SECONDS / max(crew.ask(3))))
    for number in range(rounds):
        names = list(started)[::-1] if number % 2 else list(started)
        for name in names:
            times[name].append(max(started[name].ask(blocks[name])))
    return times


def ratio(over: Sequence[float], under: Sequence[float], factor: float = 1.0) -> dict[str, Any]:
    """The median over rounds of ratios within a round, and their spread."""
    values = [factor * a / b for a, b in zip(over, under, strict=True)]
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "rounds": len(values),
    }


def serve(step: Callable[[], None], answer: Callable[[str], Any]) -> None:
    """A worker's side: take as many steps as asked for and say the seconds of one; `answer` knows
    all other words."""
    import time

    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word.isdigit():
            began = time.perf_counter()
            for _ in range(int(word)):
                step()
            print(json.dumps((time.perf_counter() - began) / int(word)), flush=True)
        else:
            print(json.dumps(answer(word)), flush=True)

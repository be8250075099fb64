"""Fill in the parts of docs/reliability.md that benchmarks measured.

A test checks that they are up to date, so that the page shows what benchmarks/results/ holds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"


def results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    return found


def faults() -> str:
    """What a hundred kills did."""
    found = results("faults")
    how, again = found["how"], found["steps repeated"]
    seconds = found["seconds to the next completed step"]
    equal = found["digest equal"] and found["metrics equal"]
    return (
        f"**{found['kills']} kills** of {found['about']['workers']} workers over {found['steps']} "
        f"steps ({how['one']} times one, {how['two at once']} times two at once, {how['frozen']} "
        f"times frozen, {how['not waited for']} times without waiting for the run to go on): "
        f"{again['in all']} steps computed again, at most {again['at most after one kill']} after "
        f"a kill; {seconds['median']:.2f} s from a kill to the next completed step (median; at "
        f"most {seconds['max']:.2f}); digest and metrics "
        + ("**equal** to those of an undisturbed run." if equal else "**different**.")
    )


def costs() -> str:
    """Recovering, and keeping the last step."""
    found = results("recovery")
    table = [
        "| `benchmarks/recovery.py` | 2 workers | 4 workers |",
        "| --- | --- | --- |",
        "| from SIGKILL to the next completed step, against a bare `torchrun` restart | "
        + " | ".join(
            f"**{found['recovery'][n]['samepath against torchrun']:.2f}**" for n in ("2", "4")
        )
        + " |",
    ]
    for name in ("samepath", "torchrun"):
        cells = [_median(found["recovery"][n]["seconds"], name) for n in ("2", "4")]
        table.append(f"| {name}, seconds (median) | " + " | ".join(cells) + " |")
    shares = [
        f"{kept['share of the step time']:.1%} ({100 * kept['lowest share']:.1f} to "
        f"{100 * kept['highest share']:.1f}) of the step time at {n} "
        f"worker{'s' if n != '1' else ''}"
        for n, kept in found["keeping"].items()
    ]
    return "\n".join(table) + (
        "\n\nKeeping the last step on nodules takes "
        + " and ".join(shares)
        + ", timed in the training loop."
    )


def _median(seconds: dict[str, list[float]], name: str) -> str:
    (values,) = [sorted(v) for key, v in seconds.items() if key.startswith(name)]
    return f"{values[len(values) // 2]:.2f}"


def uneven() -> str:
    """What following speeds brings."""
    found = results("uneven")
    slow, equal = (
        found[name]["ratio"] for name in ("one of two workers at half speed", "two equal workers")
    )
    return (
        f"`benchmarks/uneven.py` (nodules, grains of {found['about']['grain']}, a busy process on "
        f"one of two workers' core): **{slow['median']:.2f}** times the throughput of an even "
        f"assignment ({slow['low']:.2f} to {slow['high']:.2f}); with two equal workers "
        f"{equal['median']:.2f} ({equal['low']:.2f} to {equal['high']:.2f})."
    )


def load() -> str:
    """How it stands under load."""
    table = [
        "| `benchmarks/load.py` | workers | same bits | step (ms; early, late) | memory (MiB) | "
        "descriptors |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for rows in results("load")["parts"].values():
        for row in rows:
            if "digest" in row:
                flat = f", {round(row['mib_per_10000_steps'], 1) + 0:+.1f} per 10,000 steps"
                step = f"{row['step_ms']:.1f}"
                if row["steps"] >= 100:
                    step = f"{row['step_ms_early']:.1f}, {row['step_ms_late']:.1f}"
                table.append(
                    f"| {row['load']} | {row['workers']} | "
                    f"{'yes' if row['same_digest'] else 'NO'} | {step} | "
                    f"{row['anonymous_mib']:.0f}"
                    f"{flat if row['steps'] >= 1000 else ''} | "
                    f"{' to '.join(str(n) for n in dict.fromkeys(row['descriptors']))} |"
                )
    return "\n".join(table)


def render(text: str) -> str:
    """The page with its parts filled in."""
    for part in (faults, costs, uneven, load):
        begin, end = f"<!-- {part.__name__} -->\n", "<!-- end -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{part()}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))

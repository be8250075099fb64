"""What a certificate says (`samepath doctor --certify`): a JSON object that can be sent to others.

In: what was found on a machine. Out: the same without what is private, sealed with a SHA-256, and
in words and tables. Guaranteed: no host name, user name, network address or folder of this machine
stays in any text; the sum is over everything else, so that a changed certificate is noticed (not a
forged one: anybody can compute a new sum).
"""

from __future__ import annotations

import getpass
import hashlib
import json
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from samepath.console import count
from samepath.files import finite
from samepath.insight.doctor import MOST_BUSY

FORMAT = 1
SEAL = "sha256"
FOLDER, HOST, USER, ADDRESS = "[folder]", "[host]", "[user]", "[address]"
_PATH = re.compile(r"""(?<![\w./~:\]])~?/(?!dev/shm\b)[\w@+%~-][^\s,;:)'"]*""")
_BELOW = r"""(?:/[^\s,;:)'"]*)?"""
_ADDRESS = re.compile(r"\b(?!127\.0\.0\.1\b)\d{1,3}(?:\.\d{1,3}){3}\b(?!\.)")
_ORDINARY = {"root", "user", "localhost", "none", "torch", "samepath"}
"""Names that tell nothing of anybody, and that other texts contain."""


def private_words(*folders: Path) -> dict[str, str]:
    """What must not leave this machine, each with what stands in its place, longest first."""
    places = [Path.home(), Path.cwd(), *(folder.absolute() for folder in folders)]
    found = {str(place): FOLDER for place in places if len(place.parts) > 1}
    host = socket.gethostname()
    found |= {host: HOST, host.partition(".")[0]: HOST}
    with suppress(KeyError, OSError):  # a user without a name
        found[getpass.getuser()] = USER
    kept = {
        word: instead for word, instead in found.items() if word.lower() not in {"", *_ORDINARY}
    }
    return dict(sorted(kept.items(), key=lambda pair: -len(pair[0])))


def without_private(value: Any, words: Mapping[str, str]) -> Any:
    """Replace, in all texts of a value, private words, folders and network addresses."""
    if isinstance(value, Mapping):
        return {name: without_private(each, words) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_private(each, words) for each in value]
    if not isinstance(value, str):
        return value
    for word, instead in words.items():
        below = _BELOW if instead == FOLDER else ""
        pattern = rf"(?<!\w){re.escape(word)}(?!\w){below}"
        value = re.sub(pattern, instead, value, flags=re.IGNORECASE)
    return _ADDRESS.sub(ADDRESS, _PATH.sub(FOLDER, value))


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add the SHA-256 of everything else."""
    plain = finite({name: value for name, value in content.items() if name != SEAL})
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return {**plain, SEAL: hashlib.sha256(text.encode()).hexdigest()}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Whether a certificate is as it was written."""
    return bool(seal(content)[SEAL] == content.get(SEAL))


# ---- in words

Table = tuple[str, list[list[str]], str]
"""A title, rows of which the first is the head, and a note."""


def verdict(content: Mapping[str, Any]) -> str:
    """The answer in a few sentences."""
    where, counts = content["device"], content["workers"]
    listed = f"{', '.join(map(str, counts[:-1]))} and {counts[-1]} workers"
    said = f"{content['recipe']} on the {where}: "
    if len(set(counts)) == 1:
        listed = f"two runs on {count(counts[0], 'worker')}"
    if content["equal"]:
        continued = ", and when saved and continued" if content["trained"]["resumed_at"] else ""
        said += f"the same bits after every step on {listed}{continued}."
    else:
        said += f"the bits differ on {listed}."
        if (difference := content["difference"]) is not None:
            said += (
                f" They part at step {difference['step']}, in {difference['name']}; likely cause: "
                f"{difference['cause']['likely']}."
            )
    timed = [line for line in content["speed"] if line["ratio"] is not None]
    if timed:
        workers, ratio = count(timed[-1]["workers"], "worker"), timed[-1]["ratio"]
        said += f" On {workers} a step takes {ratio:.2f} times as long as DDP's"
        busy = content["busy_cores"]
        said += f" (while other processes used {busy:.1f} cores)." if busy > MOST_BUSY else "."
    return f"{said} {_of_ddp(content['ddp'])}".rstrip()


def _of_ddp(ddp: Mapping[str, Any]) -> str:
    if ddp["refused"]:
        return f"DDP did not run: {ddp['refused']}."
    if ddp["changes"] is None:
        return ""
    differ = "differ between worker counts" if ddp["changes"] else "do not depend on the count"
    return f"After {count(ddp['steps'], 'step')} DDP's own weights {differ}."


def tables(content: Mapping[str, Any]) -> list[Table]:
    """Everything that is in it."""
    found = [_runs(content), _speed(content), _gpus(content)]
    found.append(("Machine", [["", "found"], *_pairs(content["machine"])], ""))
    found.append(("Versions", [["", "found"], *_pairs(content["versions"])], ""))
    return found


def _runs(content: Mapping[str, Any]) -> Table:
    rows = [["workers", "steps", "digest", "path"]]
    for place, run in enumerate(content["runs"]):
        path = "the same" if place else "reference"
        if run["parts_at"] is not None:
            path = f"differs from step {run['parts_at']} on"
        workers = " then ".join(map(str, run["workers"]))
        rows.append([workers, str(run["steps"]), run["digest"][:16], path])
    made = content["trained"]
    note = (
        f"Batches of {made['batch_size']}, grains of {made['grain_size']}, seed {made['seed']}, "
        f"{count(made['threads'], 'thread')} per worker. Compared after every step: weights, "
        "buffers, optimizer state, losses, metrics."
    )
    return "Worker counts", rows, note


def _speed(content: Mapping[str, Any]) -> Table:
    rows = [["workers", "samepath (ms)", "DDP (ms)", "samepath / DDP", "DDP's weights"]]
    for line in content["speed"]:
        ratio = line["ratio"]
        rows.append(
            [
                str(line["workers"]),
                _ms(line["seconds"]),
                _ms(line["ddp_seconds"]),
                "" if ratio is None else f"{ratio:.2f}",
                (line["ddp_digest"] or "")[:16],
            ]
        )
    note = (
        f"Median of {content['timed_steps']} steps, taken in turns with DDP on the same batches. "
        "DDP on one worker is a plain loop; dropout and batch norm see each worker's share. "
        f"Other processes used up to {content['busy_cores']:.1f} cores while this was measured."
    )
    return "A step, beside DDP", rows, note


def _gpus(content: Mapping[str, Any]) -> Table:
    nccl = content["nccl"]
    rows = [["", "found"]]
    for number, gpu in enumerate(content["gpus"]):
        about = f"{gpu['name']}, compute capability {gpu['capability']}, {gpu['memory_gib']} GiB"
        rows.append([f"GPU {number}", about])
    if not content["gpus"]:
        rows.append(["GPUs", "none"])
    settings = ", ".join(f"{name}={value}" for name, value in nccl["variables"].items())
    rows += [["driver", content["driver"]], ["CUDA", content["cuda"]], ["NCCL", nccl["version"]]]
    rows.append(["NCCL settings", settings or "none"])
    return "GPUs and NCCL", rows, ""


def _pairs(values: Mapping[str, str]) -> list[list[str]]:
    return [[name, value] for name, value in values.items() if value]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.3g}"

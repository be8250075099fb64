"""What a run has to show, as pictures and one page.

In: a run's folder, and others to compare its losses with. Out: a folder with `losses.png`, whatever
the recipe draws (`Recipe.show`), what was found out about it, and `index.html`, which holds it all.
Guaranteed: the runs themselves are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from samepath.engine.state.reopen import ReopenedRun, look_at
from samepath.engine.state.run_folder import RunFolder
from samepath.errors import UserError
from samepath.report.curves import draw_losses
from samepath.report.findings import finding_sections
from samepath.report.noise import draw_noise, noise_lines, noise_meaning, noise_words
from samepath.report.page import Section, write_page


def show_run(path: Path, out: Path | None = None, others: Sequence[Path] = ()) -> Path:
    """Draw a run; the page's path. `out` is the folder to draw into, RUN/show if not given."""
    run = look_at(path)
    draws = run.draws  # a recipe that has changed is refused before anything is drawn
    for other in others:
        RunFolder(other).read()
    folder = out or path / "show"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; give a folder")
    sections = [Section(heading="The run", table=_facts(run))]
    if run.losses_by_epoch():
        picture = folder / "losses.png"
        runs = (path, *others)
        told_by_name = len({each.name for each in runs}) == len(runs)
        labels = {each.name if told_by_name else str(each): each for each in runs}
        draw_losses(labels, picture, title=f"{run.config['recipe']}: loss")
        sections.append(Section(heading="Loss", picture=picture))
    sections += _noise(run, folder)
    if draws:
        assert run.recipe.show is not None
        sections += run.recipe.show(run, folder)
    sections += finding_sections(path, run.config["recipe"])
    page = folder / "index.html"
    write_page(page, f"{path.name}: {run.config['recipe']}", sections)
    return page


def _noise(run: ReopenedRun, folder: Path) -> list[Section]:
    metrics = run.folder.read_metrics()
    lines = noise_lines(metrics)
    if len(lines) < 2:  # no line to draw
        return []
    picture, batch_size = folder / "noise.png", run.config["batch_size"]
    draw_noise(metrics, batch_size, picture, f"{run.config['recipe']}: gradient noise scale")
    words = noise_meaning(lines[-1]["noise_scale"], batch_size)
    return [Section(heading="Gradient noise scale", words=words, picture=picture)]


def _facts(run: ReopenedRun) -> list[list[str]]:
    config, result = run.config, run.record["result"] or {}
    rows = [["", ""], ["status", run.record["status"]]]
    for name in ("steps", "epochs", "train_loss", "valid_loss", "num_workers", "digest"):
        if result.get(name) is not None:
            value = result[name]
            rows.append([name, f"{value:.6g}" if isinstance(value, float) else str(value)])
    if result.get("noise_scale") is not None:
        words = (result[f"noise_{name}"] for name in ("scale", "low", "high"))
        rows.append(["noise scale", noise_words(*words)])
    for name in ("recipe", "data", "batch_size", "grain_size", "seed", "threads"):
        if config.get(name) is not None:
            rows.append([name, str(config[name])])
    rows.append(["command", " ".join(run.record["starts"][-1]["command"])])
    rows.append(["torch", run.record["starts"][-1]["versions"]["torch"]])
    return rows

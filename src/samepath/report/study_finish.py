"""The last stage of a study: its verdict, `study.json` and the report.

In: what was found. Out: the same with its verdict, and a folder with everything to look at.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from samepath.engine.state.run_folder import finite
from samepath.files import write_atomically
from samepath.report.study_grid import grid_verdict
from samepath.report.study_report import write_report
from samepath.report.study_tables import (
    TIME_NOTE,
    Rows,
    efficiency_table,
    grid_table,
    predictions_table,
    time_table,
)
from samepath.report.study_verdict import verdict
from samepath.study.results import GridStudy, Study, to_json


def finish_study(study: Study | GridStudy, folder: Path) -> tuple[Study | GridStudy, Path]:
    """Write everything; the study with its verdict, and the report's path."""
    if isinstance(study, Study):
        said = verdict(study.cells, study.target.loss, study.rate.how)
    else:
        said = grid_verdict(study)
    study = replace(study, verdict=said)
    write_atomically(folder / "study.json", json.dumps(finite(to_json(study)), indent=1) + "\n")
    return study, write_report(study, folder)


def tables_in_short(study: Study | GridStudy) -> list[tuple[str, Rows, str]]:
    """What fits a terminal: titles, tables, and a note below each."""
    if isinstance(study, GridStudy):
        return [(f"{study.metric} at the end", grid_table(study), "")]
    loss = f"{study.target.loss:.4g}"
    tables = [
        (f"Time to a validation loss of {loss}", time_table(study), TIME_NOTE),
        ("Efficiency, T1 / (n Tn), in percent", efficiency_table(study, study.strategies), ""),
    ]
    if study.predictions:
        tables.append(("The model against what was measured", predictions_table(study), ""))
    return tables

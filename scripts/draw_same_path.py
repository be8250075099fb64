"""The README's picture: nodules-small at 1, 2, 3 and 5 workers. Takes about two minutes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from samepath.engine.train import Request, train
from samepath.report.show import draw_loss_curves


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs, digests = {}, set()
        for num_workers in (1, 2, 3, 5):
            result, path = train(
                Request(
                    recipe="nodules-small",
                    num_workers=num_workers,
                    epochs=4,
                    grain_size=4,
                    out=Path(folder, str(num_workers)),
                )
            )
            runs[f"{num_workers} worker{'s' if num_workers > 1 else ''}"] = path
            digests.add(result.digest)
        if len(digests) != 1:
            raise SystemExit(f"the digests differ: {digests}")
        draw_loss_curves(
            runs,
            Path(__file__).parents[1] / "docs" / "images" / "same_path.png",
            title="DeepDensity on LIDC nodules: 1, 2, 3 and 5 workers, one digest",
        )


if __name__ == "__main__":
    main()

"""The pictures of nodules: written, of a sensible size, and of the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from report_runs import count_pixels, epoch_lines, write_run

from samepath.report.nodules import (
    Floats,
    camera,
    draw_ellipsoids,
    draw_measures,
    draw_real_and_generated,
    draw_reconstructions,
    draw_sharpening,
    picture_ellipsoids,
    picture_surface,
)
from samepath.report.show import draw_losses

LONG = "LIDC-IDRI-0078_and_a_name_without_blanks, $and$ $ with more words than have room"
SIDE = 8


@pytest.fixture(autouse=True)
def few_rays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samepath.report.nodules._OVERSAMPLING", 1)


def ball(radius: float, side: int = SIDE, middle: tuple[float, ...] = (0.0, 0.0, 0.0)) -> Floats:
    """A soft ball whose surface at one half has this radius, in the domain [-1, 1]^3."""
    centres = (2.0 * np.arange(side) + 1.0) / side - 1.0
    grid = np.stack(np.meshgrid(centres, centres, centres, indexing="ij"), axis=-1)
    distance = np.linalg.norm(grid - np.array(middle), axis=-1)
    soft: Floats = np.clip(0.5 + (radius - distance) * side / 4.0, 0.0, 1.0)
    return soft


def balls(count: int) -> Floats:
    return np.stack([ball(0.4 + 0.05 * number) for number in range(count)])


def gaussians(count: int, num_components: int = 5) -> tuple[Floats, Floats, Floats]:
    """Weights, means, covariances."""
    random = np.random.default_rng(0)
    weights = np.ones((count, num_components)) / num_components
    means = random.uniform(-0.5, 0.5, (count, num_components, 3))
    return weights, means, np.tile(0.04 * np.eye(3), (count, num_components, 1, 1))


Draw = Callable[[Path, Floats, str], object]
"""Draw a figure of these volumes into this file, with this text wherever text goes."""


def losses(out: Path, volumes: Floats, text: str) -> None:
    lines = epoch_lines(len(volumes), 1.0, factor=float(volumes.mean()) + 0.1)
    run = write_run(out.parent.parent / f"{out.stem}.run", lines)
    draw_losses({text: run}, out, title=text)


def measures(out: Path, volumes: Floats, text: str) -> None:
    held_out = {text: volumes.mean(axis=(1, 2, 3)), "constant": np.ones(len(volumes))}
    generated = {text: np.array([np.nan, 0.1]), "constant": np.array([])}
    draw_measures(generated, held_out, out, labels=("generated", "held out"))


DRAWN: dict[str, Draw] = {
    "reconstructions": lambda out, volumes, text: draw_reconstructions(
        volumes, volumes / 2, out, names=[text] * len(volumes), errors=[0.01] * len(volumes)
    ),
    "sharpening": lambda out, volumes, text: draw_sharpening(
        volumes,
        np.stack([volumes * share for share in (0.2, 0.5, 0.9)]),
        [1, 20, 400],
        out,
        names=[text] * len(volumes),
        losses=[1.0, 0.1, 1e-5],
    ),
    "ellipsoids": lambda out, volumes, text: draw_ellipsoids(
        volumes, *gaussians(len(volumes)), out, names=[text] * len(volumes)
    ),
    "real and generated": lambda out, volumes, text: draw_real_and_generated(
        volumes, volumes[:1] / 2, out, title=text
    ),
    "measures": measures,
    "losses": losses,
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_of_its_data_and_fits_a_page(name: str, tmp_path: Path) -> None:
    """Also of one constant volume with a long name, into a folder that is not there yet."""
    draw, folder = DRAWN[name], tmp_path / "new"
    draw(folder / "a.png", balls(2), "nodule")
    draw(folder / "b.png", balls(2) * 0.8, "nodule")
    assert (folder / "a.png").read_bytes() != (folder / "b.png").read_bytes()
    height, width, _ = imread(folder / "a.png").shape
    assert 700 <= width <= 1400
    assert 200 <= height <= 1500
    for value in (0.0, 1.0):
        out = folder / f"{value:.0f}.png"
        draw(out, np.full((1, SIDE, SIDE, SIDE), value), LONG)
        image = imread(out)[:, :, :3]
        edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
        assert (edge == 1.0).all(), "nothing is cut off at the figure's edge"


@pytest.mark.parametrize(("value", "covered"), [(0.0, 0.0), (1.0, 1.0)])
def test_a_constant_volume_is_nothing_or_a_cube(value: float, covered: float) -> None:
    volume = np.full((SIDE, SIDE, SIDE), value)
    assert picture_surface(volume, size=30, half_width=0.9)[..., 3].mean() == covered


def test_the_surface_of_a_ball_is_a_disc_where_the_ball_is() -> None:
    before = torch.get_num_threads()
    picture = picture_surface(ball(0.5, side=16), size=80, half_width=1.0)
    assert torch.get_num_threads() == before
    covered = picture[..., 3].mean() * 4.0
    assert covered == pytest.approx(np.pi * 0.5**2, rel=0.03)
    left, right = picture[35:45, 26:30, :3].mean(), picture[35:45, 50:54, :3].mean()
    assert left > right, "the lamp is at the left"
    middle = (0.0, 0.4, -0.2)
    seen = camera() @ middle
    rows, columns = np.nonzero(
        picture_surface(ball(0.3, 16, middle), size=80, half_width=1.0)[..., 3]
    )
    assert columns.mean() / 40.0 - 1.0 == pytest.approx(seen[0], abs=0.03)
    assert 1.0 - rows.mean() / 40.0 == pytest.approx(seen[1], abs=0.03)


def test_a_fine_volume_looks_as_a_coarse_one() -> None:
    coarse, fine = (picture_surface(ball(0.5, side), size=40, half_width=1.0) for side in (32, 80))
    assert np.abs(coarse[..., 3] - fine[..., 3]).mean() < 0.02


def test_an_ellipsoid_is_as_large_as_its_standard_deviations() -> None:
    axes = camera()
    covariance = axes.T @ np.diag([0.5**2, 0.2**2, 0.1**2]) @ axes  # along right, up, to us
    red = np.array([[1.0, 0.0, 0.0, 0.5]])
    picture = picture_ellipsoids(np.zeros((1, 3)), covariance[None], red, size=100, half_width=1.0)
    alpha = picture[..., 3]
    assert alpha.max() == pytest.approx(0.5)
    assert (alpha > 0.25).any(axis=0).sum() == pytest.approx(50, abs=2)
    assert (alpha > 0.25).any(axis=1).sum() == pytest.approx(20, abs=2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_nearer_ellipsoid_is_in_front_whatever_the_order(order: tuple[int, int]) -> None:
    towards = camera()[2]
    means = np.stack([0.6 * towards, -0.6 * towards])[list(order)]
    colours = np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]])[list(order)]
    covariances = np.tile(0.04 * np.eye(3), (2, 1, 1))
    middle = picture_ellipsoids(means, covariances, colours, size=20, half_width=1.0)[10, 10]
    assert middle[0] > 0.5
    assert middle[2] == 0.0
    assert middle[3] == 1.0


def test_components_without_mass_are_left_out(tmp_path: Path) -> None:
    """Moving one changes nothing; moving one that carries mass does."""
    weights, means, covariances = gaussians(1)
    weights[0] = [0.5, 0.3, 0.195, 0.004, 0.001]

    def drawn(name: str, moved: int | None) -> bytes:
        places = means.copy()
        if moved is not None:
            places[0, moved] += 0.3
        out = tmp_path / name
        draw_ellipsoids(balls(1), weights, places, covariances, out, names=["a"])
        return out.read_bytes()

    plain = drawn("a.png", None)
    assert drawn("b.png", 4) == plain
    assert drawn("c.png", 2) != plain


def test_held_out_is_filled_and_generated_a_line(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    out = tmp_path / "a.png"
    spread = {f"measure {n}": random.normal(size=500) for n in range(5)}
    draw_measures(spread, spread, out, labels=("generated", "held out"))
    image = imread(out)
    assert count_pixels(image, "#b8c4cf") > 2 * count_pixels(image, "#b2182b") > 1000

"""New CT nodules in real surroundings, from a run of `nodules-ct`.

In: a run; a class and a range of diameters, or of any other number that is known of the training
nodules; cubes to put nodules into (the run's own training cubes when not given). Out: cubes, the
nodules' masks, classes, facts, and how near each comes to a training nodule. Where millimetres are
known, a nodule is as large in the host's voxels as it is in millimetres, and the host's `side_mm`
goes with the new cube.

A new nodule is made from two training nodules of the class, alike in what was asked for: a point
between their codes, moved by noise with the class's own covariance; then sized, rendered at the
cubes' resolution, given a texture and put in. Guaranteed: nodule i of a seed and a wish is the same
whatever the count; the test part of the data has no part in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from samepath.engine.state.checkpoint import Epoch
from samepath.engine.state.reopen import reopen
from samepath.errors import UserError
from samepath.keys import key
from samepath.recipe import Recipe
from samepath.recipes.nodules.ct import (
    ROW,
    Floats,
    FramePlace,
    Masks,
    as_intensities,
    frames,
    measured_facts,
    mirrored,
    place_of,
    sphere_diameter,
)
from samepath.recipes.nodules.deepdensity import DeepDensity, evaluate_shaded
from samepath.recipes.nodules.judgement import nearest_distances
from samepath.recipes.nodules.surroundings import Texture, with_nodule, without_nodule
from samepath.threads import limited_threads

Range = tuple[float, float]

NUM_MATES = 8
"""A nodule is made from one training nodule and one of so many that are most like it."""
WIDTH = 0.5
"""Share of the class's own spread that noise brings to a code."""
MOST_SCALED = 1.15
"""A nodule is not made larger or smaller than this times what its parents are, where it can be
helped: a large one made small has a large one's texture."""
NUM_HOSTS = 12
"""A host is one of so many whose own nodules are most like the new one in size."""
ATTEMPTS = 40
"""At a nodule that is as wished for."""
FEW_PARENTS = 10
"""New nodules of fewer training nodules are variants of these."""
_OF_CUBE = ("side_mm", "spacing_mm")
"""Facts of a cube, whatever nodule is in it."""
_VARIANCE = 0.995


class Surroundings(NamedTuple):
    """Cubes that new nodules are put into."""

    volumes: Floats
    masks: Masks | None = None
    """Of nodules that are in them."""
    side_mm: NDArray[np.float64] | None = None
    """Millimetres along a side of each."""


@dataclass(frozen=True, kw_only=True)
class GeneratedCubes:
    """New nodules in their surroundings, one per row."""

    volumes: Floats
    """(N, s, s, s) in [0, 1]."""
    masks: Masks
    category: NDArray[np.str_]
    facts: Mapping[str, NDArray[Any]]
    """`diameter` and `intensity` as measured; `side_mm`, where it is known, the host's; other
    numbers as drawn."""
    keys: NDArray[np.uint64]
    """Each nodule's random key, made from the seed, the class and its number."""
    hosts: NDArray[np.int64]
    """Row, in its file, of the cube that gave the surroundings."""
    parents: NDArray[np.int64]
    """(N, 2): rows, in the run's data file, of the training nodules it was made from."""
    num_parents: int
    """Training nodules that are as was wished for, from which all were made."""
    frames: Floats
    """(N, 2, side, side, side): the nodules alone, as the model would see them."""


class CubeGenerator:
    """Learns what a run's training nodules have in common, once; then makes new ones."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        if not isinstance(model, DeepDensity) or model.num_dims != 3 or not model.num_shades:
            raise UserError(
                f"the run's model is a {type(model).__name__} without masks, or not in three "
                "dimensions; train one: samepath train nodules-ct --data cubes.npz"
            )
        assert isinstance(recipe.train, tuple)
        seen, cubes, masks = (part.numpy() for part in recipe.train)
        self.model = model
        self.frames: Floats = seen
        self.volumes = as_intensities(cubes)
        self.masks: Masks = masks
        self.facts = dict(recipe.train_facts)
        self.file_rows = np.asarray(self.facts.pop(ROW, np.arange(len(masks))), np.int64)
        sides = self.facts.get("side_mm")
        self.side_mm = None if sides is None else np.asarray(sides, np.float64)
        found = self.facts.get("category")
        self.has_categories = found is not None
        self.category = np.full(len(masks), "all") if found is None else np.asarray(found, np.str_)

    # ---- what is learned

    @cached_property
    def codes(self) -> _Codes:
        """Codes of the training nodules, each in 16 mirrored ways."""
        return _Codes.learn(encode_frames(self.model, mirrored(self.frames)), len(self.frames))

    @cached_property
    def texture(self) -> Texture:
        return Texture.learn(self.volumes, self.masks, self.reconstructed)

    @cached_property
    def reconstructed(self) -> Floats:
        """The training nodules' intensities as their mixtures have them, at every voxel."""
        return self.intensities_of(self.frames, self.masks)

    def intensities_of(self, seen: Floats, masks: Masks) -> Floats:
        """What the mixtures of frames give at every voxel of the cubes they were cut from."""
        codes = encode_frames(self.model, seen)
        made = [
            self._render(code, place_of(mask), len(mask))[1]
            for code, mask in zip(codes, masks, strict=True)
        ]
        return np.stack(made)

    def reconstruct(self, seen: Floats, volumes: Floats, masks: Masks, *, seed: int = 0) -> Floats:
        """Cubes whose nodules are as their mixtures say, with a texture, in their own places."""
        made = self.intensities_of(seen, masks)
        cubes = []
        for row, (volume, mask, inside) in enumerate(zip(volumes, masks, made, strict=True)):
            random = np.random.Generator(np.random.Philox(key=key("reconstruct", seed, row)))
            texture = self.texture.draw(volume, mask, mask, inside, random)
            cubes.append(with_nodule(volume, mask, mask, (inside + texture).clip(0.0, 1.0))[0])
        return np.stack(cubes)

    # ---- generation

    @limited_threads(1)
    def generate(
        self,
        count: int,
        *,
        category: str | None = None,
        wish: Mapping[str, Range] | None = None,
        into: Surroundings | None = None,
        seed: int = 0,
    ) -> GeneratedCubes:
        """Make nodules of a class (None: all, in their shares) with facts in the given ranges."""
        wish = dict(wish or {})
        rows = self._rows(category, wish)
        hosts = self._hosts(into)
        words = (category or "", *sorted(wish.items()), seed)
        keys = np.array([key("generate ct", repr(words), i) for i in range(count)], np.uint64)
        made = [self._one(int(word), rows, wish, hosts) for word in keys]
        volumes = np.stack([of.volume for of in made])
        masks = np.stack([of.mask for of in made])
        return GeneratedCubes(
            volumes=volumes,
            masks=masks,
            category=np.array([of.category for of in made]),
            facts={name: np.array([of.facts[name] for of in made]) for name in made[0].facts},
            keys=keys,
            hosts=(self.file_rows if into is None else np.arange(len(into.volumes)))[
                np.array([of.host for of in made])
            ],
            parents=self.file_rows[np.array([of.parents for of in made])],
            num_parents=len(rows),
            frames=frames(volumes, masks, self.model.side),
        )

    def nearness(self, seen: Floats) -> NDArray[np.float64]:
        """Distance of nodules alone (frames) to the nearest training nodule, turned or mirrored."""
        return np.asarray(nearest_distances(seen[:, 1], self.frames[:, 1]))

    def like(
        self, facts: Mapping[str, NDArray[Any]], category: str | None, wish: Mapping[str, Range]
    ) -> NDArray[np.int64]:
        """Of nodules with these facts, those of the class and in the ranges."""
        right = np.ones(len(facts["diameter"]), bool)
        if category is not None and self.has_categories:
            right &= np.asarray(facts["category"], np.str_) == category
        for name, (low, high) in wish.items():
            values = np.asarray(facts[name], np.float64)
            right &= (values >= low) & (values <= high)
        return np.flatnonzero(right)

    def _rows(self, category: str | None, wish: Mapping[str, Range]) -> NDArray[np.int64]:
        """Training nodules that a new one may be made from."""
        names, counts = np.unique(self.category, return_counts=True)
        known = ", ".join(f"{name} ({count})" for name, count in zip(names, counts, strict=True))
        if category is not None and category not in names:
            raise UserError(
                f"--category {category}: the training data say nothing of categories; leave it out"
                if not self.has_categories
                else f"--category {category}: the training nodules are {known}; choose one"
            )
        rows = self.like(self.facts, category, {})
        for name, (low, high) in wish.items():
            option = f"--{name}" if name == "diameter" else f"--fact {name}"
            values = self._numbers(name, option)[rows]
            inside = (values >= low) & (values <= high)
            if not inside.any():
                raise UserError(
                    f"{option} {low:g}:{high:g}: no training nodule is in it; they reach from "
                    f"{np.nanmin(values):.3g} to {np.nanmax(values):.3g}"
                )
            rows = rows[inside]
        return rows

    def _numbers(self, name: str, option: str) -> NDArray[np.float64]:
        values = np.asarray(self.facts.get(name, ()))
        if values.dtype.kind not in "biuf" or not len(values):
            numbers = [n for n, of in self.facts.items() if np.asarray(of).dtype.kind in "iuf"]
            known = ", ".join(numbers)
            raise UserError(f"{option}: the data know no such number; they know {known}")
        return values.astype(np.float64)

    def _hosts(self, into: Surroundings | None) -> _Hosts:
        if into is None:
            return _Hosts(Surroundings(self.volumes, self.masks, self.side_mm), own=True)
        if into.volumes.shape[1:] != self.volumes.shape[1:]:
            raise UserError(
                f"--into has cubes of side {into.volumes.shape[1]}, the run's have "
                f"{self.volumes.shape[1]}; give such"
            )
        if into.side_mm is None and self.side_mm is not None:
            raise UserError(
                "--into has no side_mm, and the run's nodules have millimetres; add an array "
                "side_mm, the millimetres along a side of each cube"
            )
        if into.side_mm is not None and self.side_mm is None:
            raise UserError(
                "--into has side_mm, and the run's nodules know no millimetres; train on data with "
                "side_mm, or leave it out of --into: a voxel is then a voxel"
            )
        return _Hosts(into, own=False)

    def _one(
        self, word: int, rows: NDArray[np.int64], wish: Mapping[str, Range], hosts: _Hosts
    ) -> _Made:
        """One nodule in one cube; another attempt where it is not as wished for."""
        random = np.random.Generator(np.random.Philox(key=word))
        for _ in range(ATTEMPTS):
            made = self._attempt(rows, wish, hosts, random)
            if made is not None and all(
                low <= value <= high
                for name, (low, high) in wish.items()
                for value in (made.facts[name],)
            ):
                return made
        wished = ", ".join(f"{name} {low:g}:{high:g}" for name, (low, high) in wish.items())
        raise UserError(
            f"{ATTEMPTS} attempts made no nodule with {wished or 'a voxel in it'}; widen the range"
        )

    def _attempt(
        self,
        rows: NDArray[np.int64],
        wish: Mapping[str, Range],
        hosts: _Hosts,
        random: np.random.Generator,
    ) -> _Made | None:
        row = int(rows[random.integers(len(rows))])
        mate = self._mate(row, random)
        share = float(random.uniform(0.0, 0.5))
        code = self.codes.between(row, mate, share, random)
        diameter = self._diameter(row, mate, share, wish, random)
        host = hosts.choose(diameter, row if hosts.own else None, random)
        width = self._width(row, code, diameter / host.spacing)
        if width is None:
            return None
        side = host.background.shape[0]
        mask, inside = self._render(code, FramePlace(host.centre, width), side)
        mask = _without_specks(mask)
        if not host.removed.any():
            shift = _quiet_place(host.background, mask)
            mask, inside = np.roll(mask, shift, (0, 1, 2)), np.roll(inside, shift, (0, 1, 2))
        if not mask.any():
            return None
        texture = self.texture.draw(host.background, host.removed, mask, inside, random)
        volume, mask = with_nodule(
            host.background, host.removed, mask, (inside + texture).clip(0.0, 1.0)
        )
        if not mask.any():
            return None
        facts = {}
        for name, of in self.facts.items():
            kind = np.asarray(of).dtype.kind
            if name in _OF_CUBE:
                continue
            if kind == "f":
                facts[name] = (1.0 - share) * float(of[row]) + share * float(of[mate])
            elif kind in "biu":  # ratings and the like have nothing in between
                facts[name] = float(of[row])
        if self.side_mm is not None:
            facts["side_mm"] = host.spacing * side
        of_one = {"side_mm": np.array([host.spacing * side])} if self.side_mm is not None else {}
        measured = measured_facts(volume[None], mask[None], of_one)
        facts |= {name: float(of[0]) for name, of in measured.items()}
        return _Made(volume, mask, str(self.category[row]), facts, host.row, (row, mate))

    def _mate(self, row: int, random: np.random.Generator) -> int:
        """Another training nodule of the class, one of those most alike in size and intensity."""
        described = np.column_stack([np.log(self.facts["diameter"]), self.facts["intensity"]])
        away = (((described - described[row]) / described.std(0).clip(1e-9)) ** 2).sum(1)
        away[self.category != self.category[row]] = np.inf
        away[row] = np.inf
        alike = np.argsort(away, kind="stable")[:NUM_MATES]
        alike = alike[np.isfinite(away[alike])]
        return int(alike[random.integers(len(alike))]) if len(alike) else row

    def _diameter(
        self,
        row: int,
        mate: int,
        share: float,
        wish: Mapping[str, Range],
        random: np.random.Generator,
    ) -> float:
        """The new nodule's diameter, in the facts' unit."""
        of = self.facts["diameter"]
        found = float(of[row] ** (1.0 - share) * of[mate] ** share)
        found *= float(np.exp(0.05 * random.standard_normal()))
        found = float(np.clip(found, of[row] / MOST_SCALED, of[row] * MOST_SCALED))
        low, high = wish.get("diameter", (0.0, np.inf))
        margin = min(0.02 * low, 0.25 * (high - low)) if np.isfinite(high) else 0.0
        return float(np.clip(found, low + margin, high - margin))

    def _width(self, row: int, code: NDArray[np.float64], diameter: float) -> float | None:
        """The frame, in voxels, in which a code's nodule has a diameter of so many voxels."""
        mask = self.masks[row]
        if any(np.take(mask, (0, -1), axis).any() for axis in range(3)):
            # it goes on beyond the cube, where no diameter was measured
            measured = float(sphere_diameter(mask.sum()))
            return place_of(mask).width * diameter / measured
        side = self.model.side
        alone, _ = self._render(code, FramePlace(np.full(3, side / 2), float(side)), side)
        measured = float(sphere_diameter(alone.sum()))
        return diameter * side / measured if measured else None

    @torch.no_grad()
    def _render(
        self, code: NDArray[np.float64], place: FramePlace, side: int
    ) -> tuple[Masks, Floats]:
        """The mask of a code's nodule in a cube, and its intensities at every voxel."""
        outputs = torch.from_numpy(code[None, :-2]).float()
        mixture, shades = self.model.decode(outputs), self.model.shades(outputs)
        scale = place.width / side
        centre = torch.from_numpy(2.0 * place.centre / side - 1.0).float()
        moved = mixture._replace(mu=mixture.mu * scale + centre, sigma=mixture.sigma * scale)
        mass = (2.0 * scale) ** 3 * float(np.exp(code[-2]))
        occupied, lit = (mass * evaluate_shaded(moved, shades, side)[0]).numpy()
        share = occupied.clip(0.0, 1.0)  # of each voxel that is nodule
        inside = lit / occupied.clip(1e-6)
        inside *= code[-1] / max(float((share * inside).sum() / share.sum().clip(1e-6)), 1e-6)
        inside = inside.clip(0.0, 1.0)
        shape = (side,) * 3
        return (occupied >= 0.5).reshape(shape), inside.reshape(shape).astype(np.float32)


@torch.no_grad()
def encode_frames(model: DeepDensity, seen: Floats) -> NDArray[np.float64]:
    """(N, num_outputs + 2): the heads' outputs; the logarithm of the soft mask's mean (the mass of
    the mixture) and the mean intensity under it, numbers of the input that the model is not asked
    for."""
    codes = []
    for part in torch.from_numpy(seen).split(256):
        means = part.flatten(2).mean(2, dtype=torch.float64).clamp_min(1e-6)
        facts = torch.stack([means[:, 0].log(), means[:, 1] / means[:, 0]], dim=1)
        codes.append(torch.cat([model.encode(part).double(), facts], dim=1))
    return torch.cat(codes).numpy()


class _Made(NamedTuple):
    volume: Floats
    mask: Masks
    category: str
    facts: dict[str, float]
    host: int
    parents: tuple[int, int]


class _Codes(NamedTuple):
    """Principal components of the training nodules' codes, in 16 mirrored ways each."""

    mean: NDArray[np.float64]
    axes: NDArray[np.float64]
    """(D, M): from components with variance one to codes."""
    whitened: NDArray[np.float64]
    """(N, 16, D)."""
    facts: NDArray[np.float64]
    """(N, 2): mass and intensity."""

    @classmethod
    def learn(cls, codes: NDArray[np.float64], count: int) -> _Codes:
        from sklearn.decomposition import PCA

        found = PCA(_VARIANCE, svd_solver="full").fit(codes[:, :-2])
        scale = np.sqrt(found.explained_variance_)
        whitened = found.transform(codes[:, :-2]) / scale
        axes = found.components_ * scale[:, None]
        facts = codes[:, -2:].reshape(count, -1, 2)[:, 0]
        return cls(found.mean_, axes, whitened.reshape(count, -1, len(scale)), facts)

    def between(
        self, row: int, mate: int, share: float, random: np.random.Generator
    ) -> NDArray[np.float64]:
        """A code between two nodules', drawn towards the mean as far as noise moves it (the
        smoothed bootstrap). The second is mirrored so that it is as near the first as it can be."""
        one = self.whitened[row, random.integers(self.whitened.shape[1])]
        ways = self.whitened[mate]
        other = ways[((ways - one) ** 2).sum(1).argmin()]
        point = (1.0 - share) * one + share * other
        noise = random.standard_normal(len(point))
        moved = np.sqrt(1.0 - WIDTH * WIDTH) * point + WIDTH * noise
        facts = (1.0 - share) * self.facts[row] + share * self.facts[mate]
        return np.concatenate([self.mean + moved @ self.axes, facts])


class _Host(NamedTuple):
    row: int
    background: Floats
    removed: Masks
    """Voxels that were another nodule's."""
    centre: NDArray[np.float64]
    spacing: float
    """A voxel's side: millimetres, or 1 where these are not known."""


class _Hosts:
    """Cubes that give surroundings; nodules that are in them are taken out."""

    def __init__(self, cubes: Surroundings, *, own: bool) -> None:
        self.own = own
        self._volumes, self._masks = cubes.volumes, cubes.masks
        self._made: dict[int, Floats] = {}
        number, side = cubes.volumes.shape[:2]
        self._spacings = np.ones(number) if cubes.side_mm is None else cubes.side_mm / side
        if cubes.masks is not None:
            self._sizes = np.log(self._spacings * sphere_diameter(cubes.masks.sum((1, 2, 3))))

    def choose(self, diameter: float, but: int | None, random: np.random.Generator) -> _Host:
        """A cube, mirrored at random, whose own nodule was about as large (not that of a row)."""
        side = self._volumes.shape[1]
        if self._masks is None:
            row = int(random.integers(len(self._volumes)))
            background = _mirror(self._volumes[row], random)
            empty, middle = np.zeros((side,) * 3, bool), np.full(3, side / 2)
            return _Host(row, background, empty, middle, float(self._spacings[row]))
        away = np.abs(self._sizes - np.log(diameter))
        if but is not None and len(away) > 1:
            away[but] = np.inf
        alike = np.argsort(away, kind="stable")[:NUM_HOSTS]
        alike = alike[np.isfinite(away[alike])]
        row = int(alike[random.integers(len(alike))])
        if row not in self._made:
            word = np.random.Generator(np.random.Philox(key=key("surroundings", row)))
            self._made[row] = without_nodule(self._volumes[row], self._masks[row], word)
        both = np.stack([self._made[row], self._masks[row].astype(np.float32)], axis=-1)
        both = _mirror(both, random)
        removed = both[..., 1] > 0.5
        centre, spacing = place_of(removed).centre, float(self._spacings[row])
        return _Host(row, both[..., 0], removed, centre, spacing)


def _mirror(cube: Floats, random: np.random.Generator) -> Floats:
    flips = 1 - 2 * random.integers(0, 2, 3)
    cube = cube[tuple(slice(None, None, step) for step in flips)]
    return np.ascontiguousarray(cube.swapaxes(1, 2) if random.integers(2) else cube)


def _without_specks(mask: Masks) -> Masks:
    """Pieces with less than a twentieth of a mask's voxels are no part of it."""
    from scipy.ndimage import label

    pieces, _ = label(mask)
    sizes = np.bincount(pieces.ravel())
    sizes[0] = 0
    return np.asarray(np.isin(pieces, np.flatnonzero(sizes * 20 >= max(1, sizes.sum()))), bool)


def _quiet_place(background: Floats, mask: Masks) -> tuple[int, int, int]:
    """The shift, of at most a quarter of the cube, that puts a mask where it is darkest: into the
    lung, off vessels and walls; the smallest of several as good ones."""
    reach = background.shape[0] // 4
    low = background - background.max()  # so that what is beyond the cube is as bright as it gets
    size, axes = [2 * length for length in background.shape], (0, 1, 2)
    of_cube, of_mask = (np.fft.rfftn(of, size, axes) for of in (low, mask.astype(np.float64)))
    products = np.fft.irfftn(of_cube * of_mask.conj(), size, axes)
    shifts = np.arange(-reach, reach + 1)
    sums = products[np.ix_(shifts, shifts, shifts)]
    away = np.add.outer(np.add.outer(np.abs(shifts), np.abs(shifts)), np.abs(shifts))
    best = np.unravel_index(np.argmin(sums + 0.02 * mask.sum() * away / max(reach, 1)), sums.shape)
    first, second, third = (int(shifts[place]) for place in best)
    return first, second, third


def generate_cubes(
    run: str | Path,
    count: int,
    *,
    category: str | int | None = None,
    diameter: Range | None = None,
    facts: Mapping[str, Range] | None = None,
    seed: int = 0,
    epoch: Epoch | None = None,
) -> tuple[Floats, Masks, NDArray[np.str_]]:
    """New nodules from a run of `nodules-ct`, in the surroundings of its own training cubes.

    `category` is a class of the training data, `diameter` a range in the data's millimetres (in
    voxels where they have none), `facts` are ranges of other numbers. Returns cubes (N, s, s, s) in
    [0, 1], their masks, and their classes as text.
    """
    opened = reopen(Path(run))
    generator = CubeGenerator(opened.model(epoch)[0], opened.recipe)
    wish = dict(facts or {}) | ({} if diameter is None else {"diameter": diameter})
    made = generator.generate(
        count, category=None if category is None else str(category), wish=wish, seed=seed
    )
    return made.volumes, made.masks, made.category

"""Generated lung nodules against real ones that no model has seen.

In: volumes (N, s, s, s) with values in [0, 1], densities of a shape or CT intensities: generated,
real held-out, real trained on, and the model's reconstruction of the held-out ones if there is one.
Out: a `Judgement`: how four measures of shape are spread, how close generated volumes come to what
was trained on, and whether a classifier can tell them from real ones (Lopez-Paz and Oquab 2017).
Guaranteed: the same volumes and seed give the same numbers, in one thread, without torch.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from samepath.errors import UserError
from samepath.keys import key

Volumes: TypeAlias = npt.NDArray[np.float32]
Floats: TypeAlias = npt.NDArray[np.floating]

LEVEL = 0.5  # half of the readers, or half of the window of intensities
MEASURES = ("volume", "extent", "sphericity", "elongation")

# Share of the sphere nearest to each of the 26 directions to a neighbouring voxel, by the number
# of axes along which it steps (Lehmann and Legland 2012).
_SHARES = {1: 0.04577789, 2: 0.03698063, 3: 0.03519564}

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
NUM_COMPONENTS = 80  # principal components of the voxels that a classifier sees
NUM_FOLDS = 5
NUM_SHUFFLES = 999

_TITLES = {
    "measures": "classifier: generated or held-out, by measures",
    "voxels": "classifier: generated or held-out, by voxels",
    "sampler": "classifier: generated or reconstructed",
    "decoder": "classifier: reconstructed or held-out",
}


@dataclass(frozen=True)
class MeasureSpread:
    """One measure's mean, standard deviation and two-sample Kolmogorov-Smirnov statistics."""

    generated_mean: float
    generated_sd: float
    held_out_mean: float
    held_out_sd: float
    ks: float
    """Largest gap between the cumulative distributions of generated and held-out volumes."""
    p_value: float
    """Probability of such a `ks` if both came from one distribution."""
    ks_real: float
    """The same gap between held-out and training volumes, both real: what `ks` can hope for."""


@dataclass(frozen=True, kw_only=True)
class Nearness:
    """Distances to the nearest training volume: the `QUANTILES` of `nearest_distances`.

    A blurred volume is closer to all others than a sharp one: reconstructions show by how much.
    """

    generated: tuple[float, ...]
    held_out: tuple[float, ...]
    reconstructed: tuple[float, ...] | None
    copies: float
    """Share of generated volumes closer than the held-out ones' first quantile, 1%."""
    copies_reconstructed: float | None
    """The same share of reconstructions."""


@dataclass(frozen=True, kw_only=True)
class TwoSample:
    """How often a classifier is right about volumes it was not trained on, in two equal classes."""

    accuracy: float
    standard_error: float
    """Spread of the accuracy when classes are shuffled: what chance does to it."""
    p_value: float
    """Share of shuffles that come out at least as accurate."""
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Shape measures, nearness to training volumes and classifier tests, as `judge` found them."""

    num_generated: int
    num_empty: int
    """Generated volumes without a voxel that reaches `LEVEL`."""
    seed: int
    spreads: dict[str, MeasureSpread]
    """Spreads by measure, in the order of `MEASURES`."""
    nearest: Nearness
    two_sample: dict[str, TwoSample]
    """generated against held-out, on `measures` and on `voxels`; `training`, real against real;
    and if there are reconstructions, `sampler`, generated against reconstructed, and `decoder`,
    reconstructed against held-out. All but the first on voxels and measures."""

    def as_dict(self) -> dict[str, Any]:
        """Make dictionaries and tuples of plain numbers for JSON, without what was not judged."""
        return dataclasses.asdict(
            self, dict_factory=lambda items: {name: of for name, of in items if of is not None}
        )


def judge(
    generated: Volumes,
    held_out: Volumes,
    training: Volumes,
    reconstructed: Volumes | None = None,
    *,
    alike: Volumes | None = None,
    seed: int = 0,
) -> Judgement:
    """Judge generated volumes; `reconstructed` are the model's versions of `held_out`, in order.

    `alike` are the training volumes of held_out's category, to compare real with real (all of
    them if not given); copies are looked for among all of `training`.
    `seed` chooses which volumes of the larger set a classifier sees, the folds and the shuffles.
    """
    alike = training if alike is None else alike
    given = {"generated": generated, "held_out": held_out, "alike": alike}
    if reconstructed is not None:
        given["reconstructed"] = reconstructed
    _check({"training": training, **given})
    measures = {name: measure(volumes) for name, volumes in given.items()}
    seen = {
        name: np.hstack([measures[name], of.reshape(len(of), -1)]) for name, of in given.items()
    }
    tests = {
        "measures": two_sample(measures["generated"], measures["held_out"], seed=seed),
        "voxels": two_sample(seen["generated"], seen["held_out"], seed=seed),
        "training": two_sample(seen["alike"], seen["held_out"], seed=seed),
    }
    if reconstructed is not None:
        again = seen["reconstructed"]
        tests["sampler"] = two_sample(seen["generated"], again, seed=seed)
        tests["decoder"] = two_sample(again, seen["held_out"], paired=True, seed=seed)
    of = [measures[name].T for name in ("generated", "held_out", "alike")]
    return Judgement(
        num_generated=len(generated),
        num_empty=int(np.sum(measures["generated"][:, 1] == 0.0)),
        seed=seed,
        spreads={name: _spread(*each) for name, *each in zip(MEASURES, *of, strict=True)},
        nearest=_nearness(given, training),
        two_sample=tests,
    )


def nearest_distances(volumes: Volumes, training: Volumes) -> Floats:
    """(N,): root mean square difference to the nearest training volume, turned or mirrored.

    All 48 symmetries of the cube count, since a turned copy is a copy. In each, the neighbour is
    looked for among volumes averaged down to 8^3 voxels; the distance to it is then exact. So a
    copy has distance 0, and no distance is smaller than the true one.
    """
    small = _pooled(volumes)
    columns = np.ascontiguousarray(_pooled(training).reshape(len(training), -1).T)
    half_squares = 0.5 * np.sum(columns * columns, axis=0)
    best = np.full(len(volumes), np.inf)
    with threadpool_limits(1):
        for turned, turned_small in zip(_symmetries(volumes), _symmetries(small), strict=True):
            # |a - b|^2 = |a|^2 - 2 (a.b - |b|^2 / 2): nearest where the bracket is largest
            products = turned_small.reshape(len(volumes), -1) @ columns
            products -= half_squares
            difference = turned - training[products.argmax(1)]
            best = np.minimum(best, np.square(difference).mean((1, 2, 3), dtype=np.float64))
    return np.asarray(np.sqrt(best))


def two_sample(first: Floats, second: Floats, paired: bool = False, seed: int = 0) -> TwoSample:
    """The classifier two-sample test (Lopez-Paz and Oquab 2017) between two sets.

    A set is (N, 4 + V), measures and then voxels if there are any (V may be 0). Of the larger set
    as many are used as the smaller has. Measures and the voxels' principal components, each
    standardised, go to a least-squares classifier with a Gaussian kernel; all of it is fitted to
    four folds and asked about the fifth. `paired` sets are two versions of the same examples: both
    stay in one fold, or else an example's twin of the other class would mislead the classifier.

    Folds share what they are fitted to, so accuracy varies more than coin tosses do (0.027, not
    0.022, for 256 against 256 nodules). Hence a permutation test instead of a binomial one; least
    squares takes all shuffles at once, as further columns of classes.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.decomposition import PCA
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.model_selection import PredefinedSplit, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    generator = np.random.default_rng(key("judgement", seed))
    size = min(len(first), len(second))
    chosen = generator.permutation(len(first))[:size]
    others = chosen if paired else generator.permutation(len(second))[:size]
    features = np.concatenate([first[chosen], second[others]])
    # A shuffle swaps the classes within some pairs of one fold, so that folds stay balanced
    signs = generator.choice([-1.0, 1.0], (size, 1 + NUM_SHUFFLES))
    signs[:, 0] = 1.0
    classes = np.concatenate([-signs, signs])
    looks: list[tuple[Any, slice]] = [("passthrough", slice(len(MEASURES)))]
    if features.shape[1] > len(MEASURES):
        num_components = min(NUM_COMPONENTS, size // 2)
        looks.append((PCA(num_components, random_state=0), slice(len(MEASURES), None)))
    kernel = KernelRidge(alpha=0.1, kernel="rbf")
    classifier = make_pipeline(make_column_transformer(*looks), StandardScaler(), kernel)
    folds = PredefinedSplit(np.tile(np.arange(size) % NUM_FOLDS, 2))
    with threadpool_limits(1):
        told = cross_val_predict(classifier, features, classes, cv=folds)
    accuracies = np.mean((told > 0.0) == (classes > 0.0), axis=0)
    return TwoSample(
        accuracy=float(accuracies[0]),
        standard_error=float(accuracies[1:].std()),
        p_value=float(np.mean(accuracies >= accuracies[0])),
        num_examples=2 * size,
    )


def table(judgement: Judgement) -> list[list[str]]:
    """A header and rows of the same length, the last column being what the row says in words."""
    rows = [["", "generated", "held-out", "difference", "of real sets", "reading"]]
    for name, spread in judgement.spreads.items():
        made = f"{spread.generated_mean:.3f} ± {spread.generated_sd:.3f}"
        real = f"{spread.held_out_mean:.3f} ± {spread.held_out_sd:.3f}"
        apart = f"KS {spread.ks:.2f} (p {spread.p_value:.2g})"
        rows.append([name, made, real, apart, f"KS {spread.ks_real:.2f}", _read_spread(spread)])
    near = judgement.nearest
    made, real = (f"{of[QUANTILES.index(0.5)]:.3f}" for of in (near.generated, near.held_out))
    rows.append(["nearest training volume", made, real, "", "", "median distance; small: copies"])
    copies = [f"{near.copies:.1%}", f"{QUANTILES[0]:.1%}"]
    rows.append(["copies of training", *copies, "", "", _read_copies(near)])
    if judgement.num_empty:
        rows.append(["empty", f"{judgement.num_empty}", "", "", "", f"no voxel reaches {LEVEL}"])
    control = f"{judgement.two_sample['training'].accuracy:.2f}"
    for name, title in _TITLES.items():
        if name in judgement.two_sample:
            test = judgement.two_sample[name]
            apart = f"{test.accuracy:.2f} ± {test.standard_error:.2f} (p {test.p_value:.2g})"
            shown = control if name == "voxels" else ""
            rows.append([title, "", "", apart, shown, _read_test(test)])
    return rows


def _read_spread(spread: MeasureSpread) -> str:
    if spread.p_value >= 0.05:
        return "no difference found"
    unit = max(spread.held_out_sd, 1e-12)
    shift = (spread.generated_mean - spread.held_out_mean) / unit
    return f"differs: mean {shift:+.1f} sd, {spread.generated_sd / unit:.1f} times as wide"


def _read_copies(near: Nearness) -> str:
    usual = 5 * QUANTILES[0]  # the 1% quantile of one or two hundred volumes is that uncertain
    if near.copies <= usual:
        return "no more than among real ones"
    if near.copies_reconstructed is None:
        return "closer to training than real ones: copies, or blur"
    how = "no more" if near.copies <= near.copies_reconstructed + usual else "more"
    return f"{how} than blur explains: {near.copies_reconstructed:.1%} of reconstructions"


def _read_test(test: TwoSample) -> str:
    if test.p_value >= 0.05:
        return "no better than chance (0.5)"
    return f"classifier accuracy {test.accuracy:.2f} (0.5 = indistinguishable)"


def _check(given: dict[str, Volumes]) -> None:
    side = given["held_out"].shape[-1]
    for name, volumes in given.items():
        if volumes.ndim != 4 or volumes.shape[1:] != (side,) * 3:
            shape = f"{name} has the shape {volumes.shape}, held_out {given['held_out'].shape}"
            raise UserError(f"{shape}; all must be (N, s, s, s) with the same s")
        if len(volumes) < 2 * NUM_FOLDS:
            raise UserError(f"{name} has {len(volumes)} volumes; give at least {2 * NUM_FOLDS}")
        if not (volumes.min() >= 0.0 and volumes.max() <= 1.0):  # NaN is neither
            raise UserError(f"{name} has values outside [0, 1]; give np.clip({name}, 0, 1)")
    if len(given.get("reconstructed", given["held_out"])) != len(given["held_out"]):
        raise UserError("reconstructed must be held_out's reconstructions, one each, in order")


def _spread(generated: Floats, held_out: Floats, training: Floats) -> MeasureSpread:
    from scipy.stats import ks_2samp

    made, real = ((float(of.mean()), float(of.std())) for of in (generated, held_out))
    ks, p_value = map(float, ks_2samp(generated, held_out, method="asymp"))
    ks_real = float(ks_2samp(held_out, training, method="asymp").statistic)
    return MeasureSpread(made[0], made[1], real[0], real[1], ks, p_value, ks_real)


def _nearness(volumes: dict[str, Volumes], training: Volumes) -> Nearness:
    names = volumes.keys() - {"alike"}
    found = {name: nearest_distances(volumes[name], training) for name in names}
    spread = {name: tuple(np.quantile(of, QUANTILES).tolist()) for name, of in found.items()}
    copies = {name: float(np.mean(of < spread["held_out"][0])) for name, of in found.items()}
    return Nearness(
        generated=spread["generated"],
        held_out=spread["held_out"],
        reconstructed=spread.get("reconstructed"),
        copies=copies["generated"],
        copies_reconstructed=copies.get("reconstructed"),
    )


def _pooled(volumes: Volumes) -> Volumes:
    """Volumes averaged down to 8^3 voxels, or as they are if their side is no multiple of 8."""
    side = 8 if volumes.shape[1] % 8 == 0 else volumes.shape[1]
    by = volumes.shape[1] // side
    return np.asarray(volumes.reshape(-1, *(side, by) * 3).mean((2, 4, 6)))


def _symmetries(volumes: Volumes) -> Iterator[Volumes]:
    """The volumes turned and mirrored in all 48 ways that leave a cube in its place."""
    for axes in itertools.permutations((1, 2, 3)):
        for steps in itertools.product((1, -1), repeat=3):
            yield volumes.transpose(0, *axes)[:, *(slice(None, None, step) for step in steps)]


# ---- measures of shapes


def measure(volumes: Volumes) -> Floats:
    """(N, 4): each volume's measures, in the order of `MEASURES`.

    volume: the mean of all voxels, which blur leaves alone. extent: longest side of the bounding
    box, its faces between voxels' centres where the density interpolates to `LEVEL`. sphericity:
    area of the ball of the shape's volume over `surface_area`. elongation: longest over shortest
    principal axis of the shape's second moments, 1 for a ball.
    """
    shapes = volumes >= LEVEL
    num_voxels = shapes.sum((1, 2, 3))
    area = np.where(num_voxels > 0, surface_area(shapes), 1.0)
    columns = [
        volumes.mean((1, 2, 3), dtype=np.float64),
        _extent(volumes) / volumes.shape[1],
        math.pi ** (1 / 3) * (6.0 * num_voxels) ** (2 / 3) / area,
        np.where(num_voxels > 0, _elongation(shapes), 0.0),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def surface_area(shapes: npt.NDArray[np.bool_]) -> Floats:
    """(N,) surface areas of (N, s, s, s) shapes, a voxel's face being 1, by Crofton's formula.

    Area is twice the mean, over all directions, of how often lines of one direction cross the
    surface, times the area that belongs to a line. Here the lines join voxels' centres in the 13
    directions to a neighbour (Lehmann and Legland 2012), each counted for all volumes at once.

    Tried on shapes of 4 to 13 voxels across, turned and shifted at random: balls come out 0 to 2%
    small, ellipsoids of 2:1 1%, of 3:1 2 to 3%; turning changes sphericity by less than 1%. Sharp
    edges are cut: cubes come out 7% small on average, 14% when aligned with the voxels.
    """
    # An empty layer on each side: what is shifted out on one side comes in as empty on the other
    padded = np.pad(shapes, ((0, 0), (1, 1), (1, 1), (1, 1)))
    area = np.zeros(len(shapes))
    for step in itertools.product((-1, 0, 1), repeat=3):
        if step <= (0, 0, 0):
            continue  # the opposite direction counts the same crossings
        crossings = np.sum(padded != np.roll(padded, step, (1, 2, 3)), axis=(1, 2, 3))
        num_axes = sum(map(abs, step))
        area += 2.0 * (2.0 * _SHARES[num_axes]) * crossings / math.sqrt(num_axes)
    return area


def _extent(volumes: Volumes) -> Floats:
    """(N,) longest sides of the bounding boxes of what is at least `LEVEL`, in voxels."""
    longest = np.zeros(len(volumes))
    for axis in (1, 2, 3):
        profile = volumes.max(axis=tuple({1, 2, 3} - {axis})).astype(np.float64)
        length = profile.shape[1] - _margin(profile) - _margin(profile[:, ::-1])
        longest = np.maximum(longest, np.where(profile.max(1) >= LEVEL, length, 0.0))
    return longest


def _margin(profile: Floats) -> Floats:
    """(N,) distances from a profile's start to where it first reaches `LEVEL`, in voxels."""
    rows = np.arange(len(profile))
    first = np.argmax(profile >= LEVEL, axis=1)
    high = profile[rows, first]
    low = np.pad(profile, ((0, 0), (1, 0)))[rows, first]
    return np.asarray(first + 0.5 - (high - LEVEL) / np.where(high > low, high - low, 1.0))


def _elongation(shapes: npt.NDArray[np.bool_]) -> Floats:
    side = shapes.shape[1]
    places = np.indices((side,) * 3, dtype=np.float32).reshape(3, -1) - (side - 1) / 2
    terms = np.concatenate([np.ones_like(places[:1]), places, *(places[:, None] * places)])
    sums = (shapes.reshape(len(shapes), -1).astype(np.float32) @ terms.T).astype(np.float64)
    means = sums[:, 1:] / np.maximum(sums[:, :1], 1.0)
    centres = means[:, :3]
    covariances = means[:, 3:].reshape(-1, 3, 3) - centres[:, :, None] * centres[:, None]
    # A voxel is a cube, not a point: its own variance keeps a plane of voxels from being flat
    variances = np.linalg.eigvalsh(covariances + np.eye(3) / 12.0)
    return np.asarray(np.sqrt(variances[:, -1] / variances[:, 0]))

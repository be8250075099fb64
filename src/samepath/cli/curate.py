"""`samepath curate` and `samepath curate compare`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from samepath.cli import common
from samepath.console import LiveWatcher, print_report, print_table
from samepath.errors import UserError


class CurateGroup(click.Group):
    """A command that is also a group: `curate RECIPE ...`, and `curate compare ...`.

    Where the first argument is no subcommand's name, everything goes to the command `itself`.
    """

    itself: click.Command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args and args[0] in self.commands:
            return super().make_context(info_name, args, parent, **extra)
        return self.itself.make_context(info_name, args, parent, **extra)


def parse_eps(texts: tuple[str, ...]) -> dict[str, float]:
    """Read '2.5' and 'cat=1.8' as values by class; the class of '' are all others."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            raise UserError(f"--eps {text}: give a distance, such as 2.5, or CLASS=2.5") from None
    return found


@click.command()
@common.recipe_argument()
@common.out_option("The folder to write.", required=True, metavar="DIR")
@common.data_option
@click.option("--keep", metavar="FILE", help="A keep-list to begin with: what it drops stays so.")
@click.option(
    "--from",
    "source",
    type=common.PATH,
    metavar="RUN",
    help="The network: a run, another curation, a checkpoint, or a state_dict() as .safetensors "
    "or .pt. Trained in DIR if not given. A folder of `samepath folds`: its models judge the "
    "labels they have not seen.",
)
@click.option(
    "--folds",
    type=int,
    metavar="K",
    help="Train K folds of the recipe in DIR, to judge labels by models that have not seen them; a "
    "regression on the features, which is quicker, does if not given.",
)
@click.option(
    "--budget",
    type=float,
    metavar="B",
    help="Take so many examples (below 1: this share) for label errors, the likeliest; as many as "
    "are estimated to be wrong if not given.",
)
@click.option(
    "--precision",
    type=float,
    metavar="P",
    help="Instead: as many as are wrong with this precision, such as 0.9, by the estimate.",
)
@click.option(
    "--extractor",
    metavar="FILE",
    help="Instead: a Python file whose extractor() returns any torch module that takes the "
    "recipe's inputs; what it returns are the features.",
)
@click.option(
    "--layer",
    metavar="NAME",
    help="Features are the output of this layer; NAME:input: what goes into it. The input of the "
    "last linear layer if not given.",
)
@common.workers_option
@click.option("--epochs", type=click.IntRange(1), metavar="E", help="To train the network for.")
@common.setting(
    "--seed",
    0,
    "S",
    "Of the network, the map, and what is chosen at random.",
    type=click.IntRange(0),
)
@common.setting(
    "--method",
    "dbscan",
    "NAME",
    "dbscan or hdbscan drop what lies outside of a class's clusters; grid keeps a sample that "
    "covers the map.",
)
@click.option("--fraction", type=float, metavar="F", help="What grid keeps of each class.  [0.8]")
@click.option(
    "--eps",
    multiple=True,
    callback=lambda context, option, texts: parse_eps(texts),
    metavar="[CLASS=]VALUE",
    help="Distance within which points are of one cluster, for all classes or one (again for "
    "more); the knee of the k-distances if not given.",
)
@common.setting("--min-samples", 5, "M", "Points within eps that make the heart of a cluster.")
@common.setting("--rounds", 1, "R", "Train on what is kept and curate again.")
@common.json_option
def curate_itself(as_json: bool, **asked: Any) -> None:
    """Find the training examples of RECIPE that hurt, and write a keep-list without them.

    Features of a trained network are laid out on a map, every class is clustered on it, and what
    lies outside of the clusters is dropped as noise; duplicates, near-duplicates, likely label
    errors and outliers are named as such. DIR then holds keep.csv, random.csv (as many, chosen at
    random: the control), curation.json, figures and report.html. Run it again to go on after an
    interruption, or with other settings: what they do not change is not computed again.

    \b
    Examples:
      samepath curate digits --out curated
      samepath curate cifar10-small --out curated --epochs 10 --rounds 2
      samepath curate cifar10 --from runs/cifar10-1 --eps 2.5 --eps cat=1.8 --out curated
      samepath curate digits --folds 5 --precision 0.9 --out curated
      samepath curate my_recipe.py --extractor backbone.py --method grid --out curated
    \b
    backbone.py:
      def extractor():
          model = MyBackbone()
          model.load_state_dict(torch.load("backbone.pt", weights_only=True))
          return model
    \b
    Did it help?
      samepath curate compare --help
    """
    common.announce(f"curating {asked['recipe']}", on=asked["num_workers"], into=asked["out"])

    from samepath.curation.pipeline import curate as curate_request
    from samepath.curation.request import CurateRequest
    from samepath.report.curation import write_curation_report

    request = CurateRequest(
        command=tuple(sys.argv), watcher=LiveWatcher, display=LiveWatcher, **asked
    )
    with common.to_be_continued(as_json):
        about = curate_request(request)
        page = write_curation_report(request.out, LiveWatcher())
    if as_json:
        common.print_json(about)
    else:
        _summary(about, request.out, page)


def _summary(about: dict[str, Any], out: Path, page: Path) -> None:
    from samepath.report.curation import classes_table

    print_table(classes_table(about))
    kept, number = about["num_kept"], about["num_examples"]
    recipe, folder = shlex.quote(about["recipe"]), shlex.quote(str(out))
    data = f" --data {shlex.quote(about['data'])}" if about["data"] else ""
    for line in (
        *_noise_lines(about["label_noise"], number),
        f"{kept:,} of {number:,} examples are kept ({100 * about['reduction']:.2f}% dropped)",
        f"report: {page}",
        f"look:   samepath explore {folder}",
        f"train:  samepath train {recipe}{data} --keep {folder}/keep.csv",
    ):
        click.echo(line)


def _noise_lines(noise: dict[str, Any] | None, number: int) -> list[str]:
    """How many labels are wrong, in words."""
    if noise is None:
        return []
    from samepath.curation.label_noise import none_seen

    low, high = 100 * noise["rate_low"], 100 * noise["rate_high"]
    words = f"{100 * noise['rate']:.1f}% of the labels are wrong ({low:.1f} to {high:.1f}%)"
    words = none_seen(noise, number) or words
    lines = [f"labels: {words}, judged by {noise['judge']}; {noise['num_taken']:,} are taken"]
    pairs = [
        f"{c['right']} as {c['written']} {c['number']:.0f} ({c['low']:.0f} to {c['high']:.0f})"
        for c in noise["confusions"][:5]
    ]
    return lines + ([f"written wrong: {', '.join(pairs)}"] if pairs else [])


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read what --batch-sizes is given."""
    return tuple(common.parse_counts("--batch-sizes", text))


def parse_decays(text: str) -> tuple[float, ...]:
    """Read what --weight-decays is given."""
    decays = [common.parse_number(part, 0) for part in common.parse_list("--weight-decays", text)]
    if None in decays:
        raise UserError(
            f"--weight-decays {text}: give numbers of at least 0, separated by commas, such as "
            "0.0005,0.005"
        )
    return tuple(decay for decay in decays if decay is not None)


@click.command()
@common.recipe_argument()
@common.data_option
@click.option("--keep", required=True, type=common.PATH, help="The keep-list.")
@click.option(
    "--random",
    "control",
    type=common.PATH,
    help="A keep-list with as many kept at random; random.csv beside the other (random-2.csv "
    "beside keep-2.csv) when not given.",
)
@click.option(
    "--batch-sizes",
    metavar="LIST",
    callback=common.parsed_by(parse_sizes),
    help="The recipe's when not given.",
)
@click.option(
    "--weight-decays",
    metavar="LIST",
    callback=common.parsed_by(parse_decays),
    help="The recipe's when not given.",
)
@common.setting("--seeds", 4, "N", "Runs of each.")
@click.option("--max-epochs", type=int, metavar="E", help="Epochs of every run; the recipe's.")
@common.on_option
@common.other_hardware_option
@common.out_option("The folder; compare beside the keep-list.")
@common.json_option
def compare(
    keep: Path,
    control: Path | None,
    batch_sizes: tuple[int, ...] | None,
    weight_decays: tuple[float, ...] | None,
    seeds: int,
    out: Path | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Train RECIPE on all its data, on what a keep-list keeps, and on as many examples kept at
    random: did curation help?

    Every kind of data at every batch size and weight decay with every seed. Run it again to go on
    after an interruption, or to add batch sizes, decays, seeds or epochs.

    \b
    Example:
      samepath curate compare cifar10-small --keep curated/keep.csv --batch-sizes 64,256,1024
    """
    out = out or keep.parent / "compare"
    common.announce(f"training {asked['recipe']} with and without {keep}", into=out)

    from samepath.curation.compare import Wanted, to_json
    from samepath.curation.compare import compare as compare_all
    from samepath.curation.folder import control_of
    from samepath.report.curation import comparison_table, finish_comparison
    from samepath.study.opening import StudyRequest
    from samepath.study.places.cluster import connected

    request = StudyRequest(
        seeds=common.parse_counts("--seeds", str(seeds))[0],
        out=out,
        command=tuple(sys.argv),
        **asked,
    )
    wanted = Wanted(
        filtered=keep,
        random=control or control_of(keep),
        batch_sizes=batch_sizes or (),
        weight_decays=weight_decays or (),
    )
    with common.to_be_continued(as_json), connected(request):
        found = compare_all(request, wanted, LiveWatcher(own_thread=False))
        found, page = finish_comparison(found, request.folder)
    if as_json:
        common.print_json(to_json(found))
    else:
        title = f"{found.metric} after {found.epochs} epochs"
        print_report([(title, comparison_table(found), "")], found.verdict, page)


curate = CurateGroup("curate", short_help="Find training examples that hurt; write a keep-list.")
curate.itself = curate_itself
curate.help = curate_itself.help
curate.add_command(compare)

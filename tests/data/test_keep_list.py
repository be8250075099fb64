"""Keep-lists: read back as written, refused for other data, and the examples they leave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from samepath.data import as_source
from samepath.data.content import examples_identity
from samepath.data.keep_list import KeepList, read_keep_list, write_keep_list
from samepath.data.sources import labels_of
from samepath.engine.run.options import recipe_of, resolve
from samepath.engine.state.reopen import reopen
from samepath.engine.train import Request, train
from samepath.errors import UserError
from samepath.recipe import find_recipe

TINY = str(Path(__file__).parents[1] / "parity" / "tiny_recipe.py")
NUM_EXAMPLES = 44
HEADER = "index,label,x,y,cluster,kept,reason\n"


def tiny_labels() -> NDArray[np.int64]:
    recipe = find_recipe(TINY)
    labels = labels_of(recipe.train, recipe.train_facts)
    assert labels is not None
    return labels


def keep_list(**changes: Any) -> KeepList:
    """Keeps 32 examples of the tiny recipe."""
    numbers = np.arange(NUM_EXAMPLES)
    kept = (numbers % 3 != 1) | (numbers > 34)
    made = KeepList(
        labels=tiny_labels(),
        positions=np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 2)).astype(np.float32),
        clusters=np.arange(NUM_EXAMPLES) % 4 - 1,
        kept=kept,
        reasons=["" if row else "noise" for row in kept],
    )
    return replace(made, **changes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keep.csv"
    write_keep_list(path, keep_list())
    return path


# ---- on disk


def same(one: KeepList, other: KeepList) -> None:
    """Equal to the last bit."""
    for name, values in vars(one).items():
        others = getattr(other, name)
        if isinstance(values, np.ndarray):
            assert values.dtype == others.dtype
            assert values.tobytes() == others.tobytes(), name
        else:
            assert values == others, name


NOTES = ['a "quoted", note', "two\nlines", "", "=1+1", "Grüße"] + [""] * (NUM_EXAMPLES - 5)
EXTREMES = np.zeros((NUM_EXAMPLES, 2), np.float32)
EXTREMES[:3] = [[3.4028235e38, -1e-45], [-0.0, 1 / 3], [1e-38, 16777217]]


RELABELLED = np.isin(np.arange(NUM_EXAMPLES), (0, 3, 40))
JUDGED: dict[str, Any] = {
    "suggested": np.arange(NUM_EXAMPLES) % 4,
    "probability": np.linspace(0, 1, NUM_EXAMPLES, dtype=np.float32),
    "doubt": np.linspace(100, 0, NUM_EXAMPLES, dtype=np.float32),
    "confidence": np.linspace(1, 0, NUM_EXAMPLES, dtype=np.float32) ** 9,
    "loss": np.where(RELABELLED, np.nan, 1 / 3).astype(np.float32),
    "margin": EXTREMES[:, 0],
    "training_margin": EXTREMES[:, 1],
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"labels": None},
        {"notes": NOTES},
        {"positions": EXTREMES},
        {"notes": NOTES, **JUDGED},
        {"relabelled": RELABELLED, **JUDGED},
    ],
)
def test_round_trip(changes: dict[str, Any], tmp_path: Path) -> None:
    written = keep_list(**changes)
    write_keep_list(tmp_path / "keep.csv", written)
    same(read_keep_list(tmp_path / "keep.csv"), written)
    assert [path.name for path in tmp_path.iterdir()] == ["keep.csv"]


def test_the_file_is_as_documented_and_written_over_only_when_told(file: Path) -> None:
    before = file.read_bytes()
    first, *rows = before.decode().splitlines()
    assert first + "\n" == HEADER
    assert len(rows) == NUM_EXAMPLES
    assert rows[0].endswith(",-1,1,")
    assert rows[1].startswith("1,")
    assert rows[1].endswith(",0,0,noise")
    other = keep_list(kept=np.ones(NUM_EXAMPLES, bool), reasons=[""] * NUM_EXAMPLES)
    with pytest.raises(UserError, match=r"keep\.csv exists"):
        write_keep_list(file, other)
    assert file.read_bytes() == before
    write_keep_list(file, other, overwrite=True)
    same(read_keep_list(file), other)


def test_the_further_columns_are_as_documented(tmp_path: Path) -> None:
    path = tmp_path / "keep.csv"
    write_keep_list(path, keep_list(relabelled=RELABELLED, notes=NOTES, **JUDGED))
    first, *rows = path.read_text(encoding="utf-8").splitlines()
    further = ",decision,suggested,probability,doubt,confidence,loss,margin,training_margin,note"
    assert first == HEADER.strip() + further
    assert ",1,,relabel,0,0.0,100.0,1.0,," in rows[0], "a loss that is not known is empty"
    assert ",0,noise,drop,1," in rows[1]
    read = read_keep_list(path)
    assert read.targets is not None
    assert read.labels is not None
    changed = np.flatnonzero(read.targets != read.labels)
    assert set(changed) <= {0, 3, 40}
    assert read.targets[RELABELLED].tolist() == [0, 3, 0]


def test_what_is_relabelled_is_kept_and_has_a_new_label() -> None:
    with pytest.raises(ValueError, match="both dropped and relabelled"):
        keep_list(relabelled=~RELABELLED, **JUDGED)
    with pytest.raises(ValueError, match="needs labels"):
        keep_list(relabelled=RELABELLED)


def test_columns_have_one_row_per_example() -> None:
    with pytest.raises(ValueError, match="not equal"):
        keep_list(reasons=["noise"])


MORE = HEADER.strip() + ",decision,suggested,doubt\n"
ROW = "0,1,0.5,-0.5,2,1,\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "names nothing"),
        (HEADER, "names no examples"),
        ("index,kept\n0,1\n", "must name the columns index, label, x"),
        (HEADER + "0,1,0.5\n", "line 2: not 7 values"),
        (HEADER + ROW + ROW, "line 3: index is '0' where 1 is due"),
        (HEADER + "1,1,0.5,0.5,2,1,\n", "line 2: index is '1' where 0 is due"),
        (HEADER + "0,1,0.5,0.5,2,2,\n", "line 2: kept is '2'; it must be 1 or 0"),
        (HEADER + "0,1,0.5,0.5,2,yes,\n", "kept is 'yes'"),
        (HEADER + "0,cat,0.5,0.5,2,1,\n", "label is 'cat'; it must be a whole number"),
        (HEADER + ROW + "1,,0.5,0.5,2,1,\n", "line 3: label is ''"),
        (HEADER + "0,,0.5,0.5,2,1,\n1,3,0.5,0.5,2,1,\n", "line 3: has a label"),
        (HEADER + "0,1,0.5,0.5,1.5,1,\n", "cluster is '1.5'"),
        (HEADER + "0,99999999999999999999,0.5,0.5,1,1,\n", "label is '9999"),
        (HEADER + "0,1,nan,0.5,1,1,\n", "x is 'nan'; it must be a number"),
        (HEADER + "0,1,0.5,1e39,1,1,\n", "y is '1e39'"),
        (MORE + "0,1,0,0,1,1,,maybe,2,0.5\n", "decision is 'maybe'; it must be keep, drop or"),
        (MORE + "0,1,0,0,1,0,,relabel,2,0.5\n", "decision is 'relabel' and kept is 0"),
        (MORE + "0,1,0,0,1,1,,drop,2,0.5\n", "decision is 'drop' and kept is 1"),
        (MORE + "0,1,0,0,1,1,,relabel,-2,0.5\n", "suggested is -2"),
        (MORE + "0,1,0,0,1,1,,relabel,cat,0.5\n", "suggested is 'cat'"),
        (MORE + "0,,0,0,1,1,,relabel,2,0.5\n", "decision is 'relabel', but there is no label"),
        (MORE + "0,1,0,0,1,1,,keep,2,high\n", "doubt is 'high'; it must be a number"),
        (HEADER + '0,1,0.5,0.5,1,1,"open\n', "cannot be read as CSV"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe\x00", "cannot be read as CSV"),
    ],
)
def test_what_is_no_keep_list_is_refused(content: str | bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "keep.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as refused:
        read_keep_list(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_folder_is_not_a_keep_list_but_may_hold_one(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="samepath curate"):
        read_keep_list(tmp_path / "absent.csv")
    with pytest.raises(UserError, match=f"did you mean {file}"):
        read_keep_list(tmp_path)


# ---- the right examples


def test_the_recipe_is_cut(file: Path) -> None:
    everything, found = find_recipe(TINY), find_recipe(TINY, keep=str(file))
    rows = [n for n in range(NUM_EXAMPLES) if n % 3 != 1 or n > 34]
    for cut, whole in zip(found.train, everything.train, strict=True):  # type: ignore[arg-type]
        assert torch.equal(cut, whole[rows])
    assert found.valid is not None
    assert len(as_source(found.valid, seed=0)) == 16, "validation stays whole"
    assert found.origin.keep == str(file)
    assert found.origin.keep_identity == keep_list().identity
    assert everything.origin.keep is everything.origin.keep_identity is None


def tiny_with(tmp_path: Path, changes: str) -> str:
    """The tiny recipe with other fields."""
    path = tmp_path / "changed.py"
    path.write_text(
        f"{Path(TINY).read_text()}\nimport dataclasses, numpy as np\nplain = recipe\n"
        f"recipe = lambda: dataclasses.replace(plain(), {changes})\n"
    )
    return str(path)


def test_facts_are_cut_with_their_examples(file: Path, tmp_path: Path) -> None:
    recipe = tiny_with(tmp_path, "train_facts={'number': np.arange(44)}")
    cut = find_recipe(recipe, keep=str(file))
    assert cut.train_facts["number"].tolist() == keep_list().rows.tolist()


def test_identity_is_of_what_is_kept(tmp_path: Path) -> None:
    other_reasons = keep_list(reasons=["duplicate"] * NUM_EXAMPLES, positions=EXTREMES)
    assert other_reasons.identity == keep_list().identity
    kept = keep_list().kept.copy()
    kept[1] = True
    assert keep_list(kept=kept).identity != keep_list().identity


def test_identity_is_of_new_labels_too() -> None:
    relabelled = keep_list(relabelled=RELABELLED, **JUDGED)
    other = {**JUDGED, "suggested": (JUDGED["suggested"] + 1) % 4}
    assert keep_list(**JUDGED).identity == keep_list().identity
    assert len({relabelled.identity, keep_list().identity}) == 2
    assert keep_list(relabelled=RELABELLED, **other).identity != relabelled.identity
    same_labels = {**JUDGED, "suggested": tiny_labels()}
    assert keep_list(relabelled=RELABELLED, **same_labels).identity == keep_list().identity


def relabelling(path: Path, **changes: Any) -> KeepList:
    made = keep_list(**{"relabelled": RELABELLED, **JUDGED, **changes})
    write_keep_list(path, made, overwrite=True)
    return made


ITEMS = """
from torch.utils.data import Dataset
class Items(Dataset):
    def __init__(self, kind): self.tensors, self.kind = plain().train, kind
    def __len__(self): return 44
    def __getitem__(self, row):
        x, y = (tensor[row] for tensor in self.tensors)
        kinds = {"int": (x, int(y)), "tensor": (x, y), "dict": {"x": x, "label": y},
                 "numpy": [x, np.int32(y)], "float": (x, float(y))}
        return kinds[self.kind]
"""


@pytest.mark.parametrize("kind", ["int", "tensor", "numpy"])
def test_new_labels_of_a_data_set(kind: str, tmp_path: Path) -> None:
    made = relabelling(tmp_path / "keep.csv")
    facts = "'label': plain().train[1].numpy().astype(np.int32)"
    recipe = tiny_with(tmp_path, f"train=Items('{kind}'), train_facts={{{facts}}}")
    with Path(recipe).open("a", encoding="utf-8") as file:
        file.write(ITEMS)
    found = find_recipe(recipe, keep=str(tmp_path / "keep.csv"))
    labels = labels_of(found.train, {})
    assert labels is not None
    assert made.targets is not None
    assert labels.tolist() == made.targets[made.rows].tolist() == list(found.train_facts["label"])
    before: Any = find_recipe(recipe).train
    after: Any = found.train
    for number, row in enumerate(made.rows):
        item, whole = after[number], before[row]
        assert type(item) is type(whole)
        assert type(item[1]) is type(whole[1])
        assert torch.equal(item[0], whole[0])


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ("Items('dict')", "an item is a dict, not a pair"),
        ("Items('float')", "an item's target is a float, not a class"),
        ("(plain().train[0],)", "not pairs of inputs and classes"),
        ("(plain().train[0], plain().train[1].float())", "not pairs of inputs and classes"),
    ],
)
def test_new_labels_where_targets_are_no_classes(train: str, said: str, tmp_path: Path) -> None:
    relabelling(tmp_path / "keep.csv")
    facts = "train_facts={'label': plain().train[1].numpy()}"
    recipe = tiny_with(tmp_path, f"train={train}, {facts}")
    with Path(recipe).open("a", encoding="utf-8") as file:
        file.write(ITEMS)
    with pytest.raises(UserError, match=r"keep\.csv gives examples other labels") as refused:
        find_recipe(recipe, keep=str(tmp_path / "keep.csv"))
    assert said in str(refused.value)
    assert "decide keep or drop instead" in str(refused.value)


def test_a_new_label_is_a_class_of_the_recipe(tmp_path: Path) -> None:
    suggested = JUDGED["suggested"].copy()
    suggested[3] = 9
    relabelling(tmp_path / "keep.csv", suggested=suggested)
    assert "gives example 3 the label 9, but the classes" in said_of(tmp_path / "keep.csv")


def said_of(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        find_recipe(TINY, keep=str(path))
    text = str(refused.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def test_a_keep_list_of_other_examples(tmp_path: Path) -> None:
    path = tmp_path / "keep.csv"
    path.write_text(HEADER + ROW)
    text = said_of(path)
    assert "is of 1 examples" in text
    assert "has 44" in text
    assert f"give a keep-list made of {TINY!r}" in text
    labels = tiny_labels()
    labels[7] += 1
    write_keep_list(path, keep_list(labels=labels), overwrite=True)
    assert f"example 7 has the label {labels[7]}, but" in said_of(path)
    write_keep_list(path, keep_list(kept=np.zeros(NUM_EXAMPLES, bool)), overwrite=True)
    assert "keeps none of 44 examples" in said_of(path)


def test_labels_where_there_are_none(file: Path, tmp_path: Path) -> None:
    recipe = tiny_with(tmp_path, "train=torch.zeros(44, 8)")
    with pytest.raises(UserError, match=r"has labels, but the examples of .* none"):
        find_recipe(recipe, keep=str(file))
    write_keep_list(file, keep_list(labels=None), overwrite=True)
    assert len(find_recipe(recipe, keep=str(file)).train) == 32  # type: ignore[arg-type]


def about(path: Path, **content: Any) -> None:
    path.with_name("curation.json").write_text(json.dumps(content))


def test_other_examples_by_the_file_beside_it(file: Path) -> None:
    recipe = find_recipe(TINY)
    about(file, examples_identity=examples_identity(recipe.train, recipe.collate))
    assert find_recipe(TINY, keep=str(file)).origin.keep == str(file)
    about(file, examples_identity="0" * 64, recipe="mine.py", data="/d.npy")
    text = said_of(file)
    assert "other examples" in text
    assert "it was made of mine.py --data /d.npy" in text


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_unreadable_file_beside_it(content: str, file: Path) -> None:
    file.with_name("curation.json").write_text(content)
    with pytest.raises(UserError, match=r"curation\.json"):
        find_recipe(TINY, keep=str(file))


# ---- the identity of examples (of every kind of data: in test_sources.py)

INPUTS = torch.arange(40, dtype=torch.float32).view(20, 2)
LABELS = torch.arange(20) % 3


def test_identity_sees_every_change() -> None:
    changed = INPUTS.clone()
    changed[19, 1] += 1
    others: list[Any] = [INPUTS, changed, INPUTS.flip(0), INPUTS.double(), INPUTS[:19]]
    others += [INPUTS.view(20, 2, 1), (INPUTS, LABELS), INPUTS.bfloat16()]
    assert len({examples_identity(data) for data in others}) == len(others)


def test_identity_of_dicts_and_text() -> None:
    def items(word: str) -> Any:
        return [{"inputs": INPUTS[n], "name": f"{word}{n}", "weight": n / 7} for n in range(20)]

    assert examples_identity(items("a")) == examples_identity(items("a"))
    assert examples_identity(items("a")) != examples_identity(items("b"))
    with pytest.raises(UserError, match="holds a Linear"):
        examples_identity(items("a"), collate=lambda batch: nn.Linear(1, 1))


# ---- runs


def test_options_say_what_is_kept(file: Path) -> None:
    made = resolve(find_recipe(TINY, keep=str(file)))
    assert made.keep == str(file)
    assert made.num_examples == 32
    again = recipe_of(made)
    assert again.origin.keep_identity == made.keep_identity
    assert len(as_source(again.train, seed=0)) == 32
    write_keep_list(file, keep_list(kept=np.ones(NUM_EXAMPLES, bool)), overwrite=True)
    with pytest.raises(UserError, match=r"keep\.csv has changed since the run began"):
        recipe_of(made)


def test_a_run_of_an_older_samepath_resumes(tmp_path: Path) -> None:
    train(Request(recipe=TINY, num_workers=1, steps=2, out=tmp_path / "run"))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    del record["config"]["keep"], record["config"]["keep_identity"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    resume = Request(recipe=TINY, num_workers=1, resume=True, out=tmp_path / "run", epochs=2)
    assert train(resume)[0].steps == 10


@pytest.fixture
def run(file: Path, tmp_path: Path) -> Request:
    """Two steps into a run on what is kept."""
    request = Request(recipe=TINY, keep=str(file), num_workers=1, steps=2, out=tmp_path / "run")
    train(request)
    return replace(request, resume=True, keep=None, steps=6)


def test_resume_finds_the_keep_list_also_where_it_moved(run: Request, file: Path) -> None:
    moved = file.rename(file.with_name("elsewhere.csv"))
    with pytest.raises(UserError, match=r"keep\.csv: no such keep-list"):
        train(run)
    result, folder = train(replace(run, keep=str(moved), steps=4))
    assert result.steps == 4
    assert json.loads((folder / "run.json").read_text())["config"]["keep"] == str(moved)
    result, _ = train(run)
    assert result.steps == 6
    assert len(as_source(reopen(folder).recipe.train, seed=0)) == 32


def test_resume_refuses_another_keep_list(run: Request, file: Path) -> None:
    other = keep_list()
    kept = other.kept.copy()
    kept[[0, 1]] = kept[[1, 0]]  # as many
    write_keep_list(file, replace(other, kept=kept), overwrite=True)
    with pytest.raises(UserError, match=r"cannot resume: .*keep\.csv changed since the run began"):
        train(run)
    assert run.out is not None
    with pytest.raises(UserError, match=r"the keep-list .*keep\.csv has changed since"):
        reopen(run.out)

"""A recipe from a training script, by reading it.

In: a Python file with a plain training loop. Out: the text of a recipe made of its own lines (the
data, the model, the loss, the optimizer, the schedule, numbers of epochs and examples), with LOOK
comments where a person must decide, and where a part was not found.
Guaranteed: the script is parsed, never run or imported.

How: the loop is the innermost `for` with a `.backward()` in it. From there names lead back to the
lines that made them (a backward slice); lines that move things to a device, or wrap the model for
several processes, are left out, since samepath does both.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samepath.errors import UserError

_WRAPPERS = ("DistributedDataParallel", "DDP", "DataParallel", "FullyShardedDataParallel", "FSDP")
_MOVES = ("cuda", "cpu", "to")
_MOVED_TO = ("device", "dev", "rank", "local_rank", "args.device")
_HOUSEKEEPING = ("train", "eval", "cuda", "to", "zero_grad", "parameters", "share_memory")
_SEEDS = ("manual_seed", "manual_seed_all", "random.seed", "seed_everything")
MOST_BYTES = 1 << 22


def recipe_of_script(path: Path) -> tuple[str, str]:
    """The recipe's text, and what was found in words."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UserError(f"{path} is too long for a script; give the file with the loop")
        source = path.read_text()
        tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path} cannot be read as Python ({error}); give a script") from None
    found = _Script(tree, source, path.name).look()
    return _write(found, path), found.words()


@dataclass
class _Parts:
    """What was found in a script, as code."""

    name: str
    imports: list[str]
    definitions: list[str]
    setup: list[str] = field(default_factory=list)
    """Lines that the parts below need, in the script's order."""
    model: list[str] = field(default_factory=list)
    """Lines that make the model; the last returns it."""
    model_name: str = "model"
    batch: str = "batch"
    loss: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    """Arguments of Recipe: code by name."""
    look: list[str] = field(default_factory=list)

    def words(self) -> str:
        parts = {"model": self.model, "loss": self.loss, **self.settings}
        names = ("model", "loss", "train", "valid", "optimizer", "schedule", "batch_size", "epochs")
        there = [name for name in names if parts.get(name)]
        return f"found {', '.join(there) or 'nothing'} in {self.name}"


class _Script:
    """A script being read."""

    def __init__(self, tree: ast.Module, source: str, name: str) -> None:
        self.tree = tree
        defined = [s for s in tree.body if isinstance(s, (ast.FunctionDef, ast.ClassDef))]
        imports = [s for s in tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
        self.used = {each.name for each in defined if _is_part_of_training(each)}
        """Functions whose lines are taken, not their definition."""
        self.parsers = {"parse_args"} | {
            each.name
            for each in defined
            if any(_called(call).endswith(".parse_args") for call in _calls(each))
            and each.name not in self.used
        }
        """What is called to read the command line."""
        text = source.splitlines()
        self.known = set(dir(builtins)) | {each.name for each in defined}
        self.known |= {
            alias.asname or alias.name.split(".")[0] for s in imports for alias in s.names
        }
        kept: list[ast.stmt] = [each for each in defined if each.name not in self.used]
        kept += self._globals_of(kept)
        self.parts = _Parts(
            name,
            [_source(each, text) for each in imports],
            [_source(each, text) for each in tree.body if each in kept],
        )
        self.lines = list(self._lines(tree.body))

    def _globals_of(self, definitions: list[ast.stmt]) -> list[ast.stmt]:
        """The assignments that functions and classes read as global variables."""
        wanted = {name for each in definitions for name in _reads(each)} - self.known
        found: list[ast.stmt] = []
        for line in reversed(self.tree.body):
            if isinstance(line, (ast.Assign, ast.AnnAssign)) and _binds(line) & wanted:
                wanted |= _names(line) - self.known
                found.append(line)
        self.known |= {name for line in found for name in _binds(line)}
        return found

    def _lines(self, body: Sequence[ast.stmt]) -> Iterable[ast.stmt]:
        """Statements as they would run: those of main blocks and of functions that train, with
        their parameters named as where they are called."""
        for statement in body:
            if isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test):
                yield from self._lines(statement.body)
            elif isinstance(statement, ast.FunctionDef) and statement.name in self.used:
                names = _Rename(self._arguments(statement))
                yield from self._lines([names.visit(line) for line in statement.body])
            elif not isinstance(
                statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
            ):
                yield statement

    def _arguments(self, function: ast.FunctionDef) -> dict[str, ast.expr]:
        """What a function's parameters are where it is first called."""
        for call in _calls(self.tree):
            if isinstance(call.func, ast.Name) and call.func.id == function.name:
                names = [argument.arg for argument in function.args.args]
                given = dict(zip(names, call.args, strict=False))
                given |= {k.arg: k.value for k in call.keywords if k.arg}
                return {n: v for n, v in given.items() if isinstance(v, (ast.Name, ast.Attribute))}
        return {}

    # ---- the parts

    def look(self) -> _Parts:
        parts = self.parts
        wanted: set[str] = set()
        loop = self._loop()
        optimizer = self._assigned(lambda call: _owner(call, "parameters") is not None)
        if optimizer is not None:
            parts.model_name = _owner(optimizer[1], "parameters") or "model"
            wanted |= self._optimizer(*optimizer)
        else:
            parts.look.append("no optimizer of model.parameters() was found; write one")
        wanted |= self._model()
        wanted |= self._loaders(loop)
        if loop is not None:
            wanted |= self._loss(loop)
        self._epochs(loop)
        for code in (parts.settings.get("epochs"), parts.settings.get("batch_size")):
            wanted |= _names(ast.parse(code)) if code else set()
        parts.setup = self._slice(wanted - {parts.model_name})
        return parts

    def _loop(self) -> ast.For | None:
        nodes = [node for line in self.lines for node in ast.walk(line)]
        found = [node for node in nodes if isinstance(node, ast.For) and _backward(node)]
        if not found:
            self.parts.look.append("no loop with loss.backward() was found; write the loss")
            return None
        return min(found, key=lambda loop: len(list(ast.walk(loop))))

    def _assigned(self, is_it: Callable[[ast.Call], bool]) -> tuple[str, ast.Call] | None:
        """The first name that is given a call of this kind."""
        for line in self.lines:
            for node in ast.walk(line):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                    target = node.targets[0]
                    if isinstance(target, ast.Name) and is_it(node.value):
                        return target.id, node.value
        return None

    def _optimizer(self, name: str, call: ast.Call) -> set[str]:
        model, settings = self.parts.model_name, self.parts.settings
        code = _clean(call).replace(f"{model}.parameters()", "parameters")
        settings["optimizer"] = f"lambda parameters: {code}"
        if f"{model}." in code:
            self.parts.look.append("the optimizer names parts of the model; give it `parameters`")
        needed = _names(call)
        schedule = self._assigned(
            lambda each: (
                bool(each.args)
                and ast.unparse(each.args[0]) == name
                and not _called(each).endswith("GradScaler")
            )
        )
        if schedule is not None:
            code = ast.unparse(_Rename({name: ast.Name("optimizer")}).visit(schedule[1]))
            settings["schedule"] = f"lambda optimizer: {code}"
            loop = self._loop()
            steps = loop and f"{schedule[0]}.step" in {_called(c) for c in _calls(loop)}
            settings["schedule_every"] = repr("step" if steps else "epoch")
            needed |= _names(schedule[1]) - {name, "optimizer"}
        return needed - {model, name}

    def _model(self) -> set[str]:
        """Lines that bind, change or fill the model."""
        parts, needed = self.parts, set[str]()
        name = parts.model_name
        for line in self.lines:
            if isinstance(line, ast.Assign) and _binds(line) == {name}:
                if isinstance(line.value, ast.Call) and _called(line.value).endswith(_WRAPPERS):
                    continue
            elif isinstance(line, ast.Assign) and _root(line.targets[0]) == name:
                pass
            elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
                method = line.value.func
                if _root(method) != name or getattr(method, "attr", "") in _HOUSEKEEPING:
                    continue
            else:
                continue
            code = _clean(line)
            if not _does_nothing(code):
                parts.model.append(code)
                needed |= _names(ast.parse(code))
        if not parts.model:
            parts.look.append("no line that makes the model was found; write one")
        return needed - {name}

    def _loaders(self, loop: ast.For | None) -> set[str]:
        """The data sets of DataLoaders: the loop's, and one whose name speaks of validation."""
        parts, found = self.parts, dict[str, Any]()
        for node in [node for line in self.lines for node in ast.walk(line)]:
            if isinstance(node, ast.Assign) and _is_loader(node.value):
                found |= dict.fromkeys(_binds(node), node.value)
        looped = _names(loop.iter) if loop is not None else set()
        train = next((name for name in found if name in looped), None)
        train = train or next((name for name in found if "train" in name.lower()), None)
        if train is None:
            parts.look.append("no DataLoader of the training loop was found; give the data set")
            return set()
        words = ("val", "test", "dev", "eval")
        valid = next((n for n in found if n != train and any(w in n.lower() for w in words)), None)
        needed = self._dataset(found[train], "train")
        if valid is not None:
            needed |= self._dataset(found[valid], "valid")
        return needed

    def _dataset(self, loader: ast.Call, name: str) -> set[str]:
        settings, look = self.parts.settings, self.parts.look
        given: dict[str, ast.expr] = dict(zip(("dataset", "batch_size"), loader.args, strict=False))
        given |= {k.arg: k.value for k in loader.keywords if k.arg}
        if "dataset" not in given:
            look.append(f"the DataLoader for {name} has no data set; give one")
            return set()
        settings[name] = ast.unparse(given["dataset"])
        needed = _names(given["dataset"])
        if name == "train":
            settings["batch_size"] = ast.unparse(given.get("batch_size", ast.Constant(1)))
            for argument, ours in (("collate_fn", "collate"), ("drop_last", "drop_last"),
                                   ("num_workers", "loader_workers")):  # fmt: skip
                if argument in given:
                    settings[ours] = ast.unparse(given[argument])
                    needed |= _names(given[argument])
            sampler = ast.unparse(given.get("sampler", ast.Constant(None)))
            if sampler != "None" and "istributed" not in "".join(self._slice({sampler})) + sampler:
                look.append(f"the loader's sampler={sampler} is left out: all examples, shuffled")
        return needed

    def _loss(self, loop: ast.For) -> set[str]:
        """The lines of the loop that the loss needs."""
        parts = self.parts
        target = loop.target
        if isinstance(loop.iter, ast.Call) and _called(loop.iter) == "enumerate":
            target = target.elts[-1] if isinstance(target, ast.Tuple) else target
        parts.batch = ast.unparse(target)
        backward = _backward(loop)
        assert backward is not None
        value = backward.func.value  # type: ignore[attr-defined]
        while isinstance(value, ast.Call) and _called(value).endswith(".scale"):  # a GradScaler's
            value = value.args[0]
            parts.look.append("the loss was scaled; autocast=torch.float16 does that by itself")
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
            parts.look.append("the loss was divided: if that was gradient accumulation, multiply "
                              "batch_size and leave the division out")  # fmt: skip
        body = list(_flat(loop.body))
        until = next((n for n, line in enumerate(body) if backward in _calls(line)), 0)
        wanted, lines = _names(value), list[str]()
        for line in reversed(body[:until]):
            code = _clean(line)
            if _binds(line) & wanted and not _does_nothing(code):
                wanted |= _names(ast.parse(code))
                lines.insert(0, code)
        if any(isinstance(line, ast.With) for line in loop.body):
            parts.look.append("the loop computes inside a `with`; if it is autocast, add "
                              "autocast=torch.float16 (or bfloat16)")  # fmt: skip
        if any(isinstance(s, ast.If) and ".step" in ast.unparse(s) for s in ast.walk(loop)):
            parts.look.append("the script steps only now and then (gradient accumulation): "
                              "multiply batch_size by it")  # fmt: skip
        for call in _calls(loop):
            if _called(call).endswith("clip_grad_norm_") and len(call.args) > 1:
                parts.settings["clip_norm"] = ast.unparse(call.args[1])
                wanted |= _names(call.args[1])
        parts.loss = [*lines, f"return {_clean(value)}"]
        return wanted - _names(target) - {parts.model_name}

    def _epochs(self, loop: ast.For | None) -> None:
        """The number in the `range` of the loop around the loop, or around the call of it."""
        nodes = [*ast.walk(self.tree), *(n for line in self.lines for n in ast.walk(line))]
        for node in nodes:
            if not isinstance(node, ast.For) or node is loop or not isinstance(node.iter, ast.Call):
                continue
            around = any(each is loop for each in ast.walk(node))
            about_epochs = around or "epoch" in ast.unparse(node.target).lower()
            if _called(node.iter) == "range" and about_epochs:
                first, *rest = map(ast.unparse, node.iter.args)
                self.parts.settings["epochs"] = f"{rest[0]} - {first}" if rest else first
                return
        self.parts.look.append("no loop over epochs was found; give their number")

    def _slice(self, wanted: set[str]) -> list[str]:
        """The lines that names come from, in the script's order."""
        wanted, taken = set(wanted) - self.known, list[str]()
        for line in reversed(self.lines):
            takes = _binds(line) & wanted or _sets_seed(line)
            if not takes or isinstance(line, (ast.For, ast.While)):
                continue
            code = self._without_parser(line)
            if code is None:
                code = _clean(line)
                wanted |= _names(ast.parse(code)) - self.known
            if code not in taken:
                taken.insert(0, code)
        return taken

    def _without_parser(self, line: ast.stmt) -> str | None:
        """The defaults of a command line, where a line reads one."""
        value = getattr(line, "value", None)
        if not isinstance(value, ast.Call) or not _called(value).endswith(tuple(self.parsers)):
            return None
        pairs = []
        for call in _calls(self.tree):
            if _called(call).endswith("add_argument") and call.args:
                flags = [a.value for a in call.args if isinstance(a, ast.Constant)]
                long = next((f for f in flags if str(f).startswith("--")), flags[0])
                given = {k.arg: k.value for k in call.keywords}
                switch = "store_true" in ast.unparse(given.get("action", ast.Constant("")))
                default = given.get("default", ast.Constant(False if switch else None))
                name = given.get("dest", ast.Constant(str(long).lstrip("-").replace("-", "_")))
                pairs.append(f"{ast.literal_eval(name)}={ast.unparse(default)}")
        self.parts.look.append("the command line's defaults are used")
        (target,) = _binds(line)
        if "import argparse" not in self.parts.imports:
            self.parts.imports.insert(0, "import argparse")
        return f"{target} = argparse.Namespace({', '.join(pairs)})"


# ---- small readers of syntax


class _Rename(ast.NodeTransformer):
    def __init__(self, names: dict[str, ast.expr]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.names.get(node.id, node)


class _Unmoved(ast.NodeTransformer):
    """Without .to(device), .cuda() and wrappers for several processes."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr in _MOVES:
            words = [ast.unparse(a) for a in node.args]
            moved = not words or all(w in _MOVED_TO or "cuda" in w or "cpu" in w for w in words)
            if moved:
                return func.value
        if _called(node).endswith(_WRAPPERS) and node.args:
            return node.args[0]
        return node


def _clean(node: ast.AST) -> str:
    copy = ast.parse(ast.unparse(node))
    return ast.unparse(_Unmoved().visit(copy)).strip()


def _source(node: ast.stmt, text: list[str]) -> str:
    """A definition as it was written, with its decorators and comments."""
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    return "\n".join(text[first - 1 : node.end_lineno])


def _does_nothing(code: str) -> bool:
    """Whether a line gives names their own values: what is left of x = x.to(device)."""
    left, _, right = code.partition(" = ")
    return left.strip("()") == right.strip("()")


def _is_loader(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _called(value).split(".")[-1] == "DataLoader"


def _sets_seed(line: ast.stmt) -> bool:
    call = line.value if isinstance(line, ast.Expr) else None
    return isinstance(call, ast.Call) and _called(call).endswith(_SEEDS)


def _calls(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _owner(call: ast.Call, method: str) -> str | None:
    """The name whose method is called among a call's arguments."""
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        for inner in _calls(argument):
            func = inner.func
            if isinstance(func, ast.Attribute) and func.attr == method:
                return _root(func)
    return None


def _root(node: ast.AST) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _reads(definition: ast.stmt) -> set[str]:
    """Names that a function or class takes from outside, and not from its own arguments."""
    tables, found = [symtable.symtable(ast.unparse(definition), "script", "exec")], set()
    for table in tables:
        tables += table.get_children()
        read = (each for each in table.get_symbols() if each.is_referenced())
        is_outermost = table.get_type() == "module"
        found |= {each.get_name() for each in read if is_outermost or each.is_global()}
    return found


def _binds(line: ast.stmt) -> set[str]:
    """Names that a statement gives a value, or changes."""
    if isinstance(line, (ast.If, ast.With, ast.For, ast.While, ast.Try)):
        return {name for inner in line.body for name in _binds(inner)}
    targets: list[ast.expr] = []
    if isinstance(line, ast.Assign):
        targets = line.targets
    elif isinstance(line, (ast.AnnAssign, ast.AugAssign)):
        targets = [line.target]
    elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
        targets = [line.value.func]  # rows.append(...) changes rows
    found = {_root(t) for target in targets for t in getattr(target, "elts", [target])}
    return {name for name in found if name is not None and name != "print"}


def _flat(body: Sequence[ast.stmt]) -> Iterable[ast.stmt]:
    """Statements, with those of `with` blocks in their place."""
    for line in body:
        if isinstance(line, ast.With):
            yield from _flat(line.body)
        else:
            yield line


def _backward(loop: ast.AST) -> ast.Call | None:
    calls = (c for c in _calls(loop) if isinstance(c.func, ast.Attribute))
    return next((call for call in calls if call.func.attr == "backward"), None)  # type: ignore[attr-defined]


def _is_part_of_training(function: ast.FunctionDef | ast.ClassDef) -> bool:
    if isinstance(function, ast.ClassDef):
        return False
    names = {_called(call).split(".")[-1] for call in _calls(function)}
    return bool(names & {"backward", "DataLoader"}) or function.name == "main"


# ---- the recipe's text


def _write(parts: _Parts, path: Path) -> str:
    settings = dict(parts.settings)
    missing = {
        "train": "the training data set",
        "optimizer": "lambda parameters: torch.optim.Adam(parameters)",
        "batch_size": "examples of one step",
        "epochs": "passes over the data",
    }
    lost = [f"{name} ({words})" for name, words in missing.items() if name not in settings]
    lost += [name for name in ("model", "loss") if not getattr(parts, name)]
    body = [*parts.setup]
    if lost:
        why = f"LOOK: not found in {path.name}: {', '.join(lost)}; write it here"
        body.insert(0, f"raise NotImplementedError({why!r})")
    name = parts.model_name
    body += ["", "def make_model():"]
    body += [f"    {line}" for code in parts.model for line in code.splitlines()]
    body += [f"    return {name}" if parts.model else "    raise NotImplementedError"]
    body += ["", f"def mean_loss({name}, batch):"]
    body += ['    """The script\'s loss, which must be a mean over the given examples."""']
    if parts.batch != "batch":
        body += [f"    {parts.batch} = batch"]
    loss = parts.loss or ["raise NotImplementedError"]
    body += [f"    {line}" for code in loss for line in code.splitlines()]
    body += ["", "return Recipe(", "    model=make_model,", "    loss=mean_loss,"]
    body += [f"    {key}={code}," for key, code in settings.items()]
    body += [f"    {key}=None,  # LOOK: {words}" for key, words in missing.items()
             if key not in settings]  # fmt: skip
    body += ["    # max_workers: the most you may ever use; 8, or batch_size, when not given", ")"]
    comments = [f"# LOOK: {words}" for words in dict.fromkeys(parts.look)]
    text = [
        f'"""A recipe made of {path.name} by `samepath init`, which has read it and not run it.',
        "",
        "Lines are the script's own. Compare them with it, above all those marked LOOK.",
        '"""',
        "",
        *parts.imports,
        "",
        "from samepath import Recipe",
        "",
        *comments,
    ]
    for definition in parts.definitions:
        text += ["", "", definition]
    text += ["", "", "def recipe():", *(f"    {line}" if line else "" for code in body
                                         for line in code.split("\n"))]  # fmt: skip
    return "\n".join(text) + "\n"

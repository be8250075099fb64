"""What a person wants verified: a recipe, or a script with a loop of its own. (No torch: what is
neither is refused at once.)"""

from __future__ import annotations

import ast
from pathlib import Path

from samepath.errors import UserError


def is_script(name: str) -> bool:
    """Whether a file is a script with a loop of its own, and not a recipe. UserError for a Python
    file that is neither. (What is no Python file is left to the recipes.)"""
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        return False
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{name!r} cannot be read as Python ({error}); correct it") from None
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    starts = any(
        (isinstance(node, ast.Attribute) and node.attr == "start")
        or (isinstance(node, ast.ImportFrom) and any(a.name == "start" for a in node.names))
        for node in ast.walk(tree)
    )
    if "recipe" in names:
        return False
    if not starts:
        raise UserError(
            f"{name!r} has neither a recipe() nor a call of samepath.start(): there is nothing to "
            "verify; add one of them (docs/recipes.md, docs/own-loop.md)"
        )
    return True

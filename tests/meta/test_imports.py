"""Every name that is imported from this repository exists, also in imports inside functions that run only on a GPU."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradcore._paths import SOURCES

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for folder in ("gradcore", "bench", "tests") for path in (ROOT / folder).rglob("*.py"))


def _file(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.exists()), None)


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    """The names that statements bind, including those in branches and loops."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.alias):
                yield (node.asname or node.name).partition(".")[0]
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name


@functools.cache
def names_of(path: Path) -> frozenset[str]:
    return frozenset(_bound(ast.parse(path.read_text()).body))


def has(module: str, name: str) -> bool:
    """Whether a module of this repository has a name, or a module inside."""
    file = _file(module)
    if (ROOT / module.replace(".", "/") / name).is_dir() or _file(f"{module}.{name}") is not None:
        return True
    if module.removeprefix("gradcore.") in SOURCES:
        return hasattr(importlib.import_module(module), name)
    # Most are found in the text, since modules for a GPU cannot be imported everywhere. Some make their names when they run.
    return file is not None and (name in names_of(file) or hasattr(importlib.import_module(module), name))


def missing(tree: ast.AST) -> list[str]:
    """Names that a module imports from this repository and that are not there."""
    return [f"line {node.lineno}: {node.module}.{alias.name}" for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("gradcore", "bench", "tests")
            for alias in node.names if alias.name != "*" and not has(node.module or "", alias.name)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_imported_is_there(path: Path) -> None:
    assert missing(ast.parse(path.read_text())) == []


def test_a_planted_import_is_noticed() -> None:
    planted = "def f():\n    from gradcore.spec import TensorSpec, Nothing\n    from gradcore.nowhere import x\n"
    assert missing(ast.parse(planted)) == ["line 2: gradcore.spec.Nothing", "line 3: gradcore.nowhere.x"]

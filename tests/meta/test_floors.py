"""The floors: imports go downwards only, and the length of files is limited."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gradcore"
LINES = 350

#: The floors of modules and packages, by the first part of their names below gradcore.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"arguments", "blame", "cells", "dtypes", "errors", "spec", "events", "reading", "folds", "forking", "grouping",
               "interning", "missing", "nearest", "overwriting", "sharing", "tiling", "trees", "units", "_command"}),
    frozenset({"memory", "report"}),
    frozenset({"devices"}),
    frozenset({"ops"}),
    frozenset({"engine"}),
    frozenset({"_classes", "_tensor", "functional", "_conversions", "_gradients", "_indexing", "_operators", "_format",
               "_step", "_random", "_distributions", "_holders", "_looks", "_memory", "_references", "_streams"}),
    frozenset({"_paths", "_settings", "autograd", "backends", "version", "nn", "optim", "data", "models", "program", "cli",
               "cuda", "utils", "amp", "onnx", "testing", "distributions", "func", "accelerator", "compiler", "distributed",
               "hub", "jit", "multiprocessing", "__main__"}),
)
#: The packages of graph mode, each of which may import those before it.
STAGES = ("program", "planning", "guarding", "watching", "tracing", "replaying", "shipping", "calls", "graphs")
#: Packages that may import only floor 0, whatever their floor.
SECLUDED = frozenset({"report", "ops"})


def floor_of(part: str) -> int:
    for number, names in enumerate(FLOORS):
        if part in names:
            return number
    raise AssertionError(f"gradcore.{part} stands on no floor: add it to the table, and to the design")


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def name_of(path: Path) -> list[str]:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def exists(dotted: list[str]) -> bool:
    base = ROOT.joinpath(*dotted)
    return base.with_suffix(".py").exists() or base.is_dir()


def typing_only(tree: ast.Module) -> set[ast.AST]:
    """Imports only for the type checker, which do not run."""
    return {inner for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for part in node.body for inner in ast.walk(part)}


def imported(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Every module of gradcore that a file imports, at its top or inside a function, with the line."""
    tree = ast.parse(path.read_text())
    unrun = typing_only(tree)
    package = name_of(path) if path.name == "__init__.py" else name_of(path)[:-1]
    for node in ast.walk(tree):
        if node in unrun:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")
        elif isinstance(node, ast.ImportFrom):
            above = package[:len(package) - node.level + 1] if node.level else []
            base = above + (node.module.split(".") if node.module else [])
            for alias in node.names:
                whole = [*base, alias.name]
                yield node.lineno, whole if base[:1] == ["gradcore"] and exists(whole) else base


def breaches(path: Path) -> list[str]:
    here = name_of(path)[1]
    floor = floor_of(here)
    found = []
    for line, target in imported(path):
        if target[0] != "gradcore":
            continue
        where = f"{path.relative_to(ROOT)}:{line} imports {'.'.join(target)}"
        if len(target) == 1:
            # The package itself is the top floor.
            if floor < len(FLOORS) - 1:
                found.append(f"{where}, the whole house, from floor {floor}")
            continue
        part = target[1]
        below = floor_of(part)
        if part == here:
            continue
        if below > floor:
            found.append(f"{where}, upwards from floor {floor} to floor {below}")
        elif here in SECLUDED and below > 0:
            found.append(f"{where}; {here} may import floor 0 alone")
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_downwards(path: Path) -> None:
    assert breaches(path) == []


def test_a_breach_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gradcore"
    for name in ("spec", "ops", "engine", "memory", "report"):
        (package / name).mkdir(parents=True)
    planted = {
        "spec/a.py": "def f():\n    from gradcore.engine import x\n", "ops/b.py": "from gradcore import memory\n",
        "report/c.py": "import gradcore.memory\n", "engine/d.py": "from ..ops import y\nimport gradcore\n",
        "memory/e.py": "from gradcore.spec import z\nfrom . import e\nimport numpy\n"}
    for name, text in planted.items():
        (package / name).write_text(text)
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    counts = {name: len(breaches(package / name)) for name in planted}
    assert counts == {"spec/a.py": 1, "ops/b.py": 1, "report/c.py": 1, "engine/d.py": 1, "memory/e.py": 0}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_of_the_graph_mode_imports_none_that_comes_after_it(stage: str) -> None:
    files = [PACKAGE / "program" / "program.py"] if stage == "program" else (PACKAGE / "program" / stage).glob("*.py")
    assert [f"{path.relative_to(ROOT)}:{line}" for path in files for line, target in imported(path)
            if target[1:2] == ["program"] and STAGES.index(target[2]) > STAGES.index(stage)] == []


def test_every_floor_has_names_of_its_own() -> None:
    assert sum(map(len, FLOORS)) == len(frozenset().union(*FLOORS))


def test_types_are_checked_strictly_on_the_three_lowest_floors() -> None:
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    strict, = (found["module"] for found in overrides if found.get("disallow_untyped_defs"))
    assert {name.split(".")[1] for name in strict} == FLOORS[0] | FLOORS[1] | FLOORS[2]
    assert all(name.endswith(".*") == (PACKAGE / name.split(".")[1]).is_dir() for name in strict)


@pytest.mark.parametrize("path", sorted(p for d in ("gradcore", "tests", "bench") for p in (ROOT / d).rglob("*.py")),
                         ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_can_be_read_at_once(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LINES
    assert ast.get_docstring(ast.parse(text)), "a file opens with a docstring that says what it is"


@pytest.mark.parametrize("folder", sorted(path.parent for part in ("devices", "program")
                                            for path in (PACKAGE / part).rglob("__init__.py")),
                         ids=lambda folder: str(folder.relative_to(PACKAGE)))
def test_the_maps_of_devices_and_of_the_graph_mode_name_their_packages_and_files(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    named = set(re.findall(r"``(\w+)``", text)) - {"check_every", "record"}
    there = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert named == there - {"__init__"}


def test_arrays_stay_above_the_memory() -> None:
    """Memory only manages bytes: it imports neither NumPy nor CuPy, nor do modules that only read records."""
    readers = [PACKAGE / f"{name}.py" for name in ("events", "reading", "folds", "grouping")]
    names = [*readers, *(PACKAGE / "memory").rglob("*.py")]
    assert [str(p) for p in names for _, target in imported(p) if target[0] in ("numpy", "cupy")] == []

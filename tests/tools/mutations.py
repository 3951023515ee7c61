"""How many planted mistakes the tests find: `python tests/tools/mutations.py draw|probe|find --help`.

`draw` takes mistakes at random, from every room in turn: a comparison, a constant or an index is changed, or a line is
dropped. `probe` copies a tree and marks their places, so that one run of the suite tells which tests reach them:

    PYTHONPATH=COPY:COPY/tests/tools HPXFER_HITS=FILE pytest -p mutations ...

`find` plants one mistake at a time and runs the tests that reach it, the fastest first, until one fails. Triton's own
language and lines outside functions are left out. A mark would make recorded kernels new, so their launchers have none.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "in": "not in"}
_hit: set[tuple[int, str]] = set()


def mistakes(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield the kind, the line and the mistaken line of every mistake that can be planted in this module."""
    lines = source.splitlines()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef) and not any("jit" in ast.unparse(d) for d in function.decorator_list):
            for statement in (s for part in function.body for s in ast.walk(part) if isinstance(s, ast.stmt)):
                if not lines[statement.lineno - 1].lstrip().startswith(("elif", "@", '"')):
                    yield from _in_statement(statement, lines)


def _in_statement(statement: ast.stmt, lines: list[str]) -> Iterator[tuple[str, int, str]]:
    def changed(kind: str, node: ast.expr, text: str) -> tuple[str, int, str]:
        line = lines[node.lineno - 1].encode()
        return kind, node.lineno, (line[: node.col_offset] + text.encode() + line[node.end_col_offset :]).decode()

    call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    droppable = call or isinstance(statement, ast.Assign | ast.AugAssign | ast.Raise)
    if droppable and statement.lineno == statement.end_lineno:
        yield "drop", statement.lineno, " " * statement.col_offset + "pass"
    for node in _expressions(statement):
        match node:
            case ast.Compare(left=left, comparators=[right]) if node.lineno == node.end_lineno:
                a, b = ast.unparse(left), ast.unparse(right)
                sign = ast.unparse(node).removeprefix(a).removesuffix(b).strip()
                if sign in OTHER:
                    yield changed("comparison", node, f"({a}) {OTHER[sign]} ({b})")
            case ast.Subscript(slice=ast.Constant(value=int(at))):
                yield changed("index", node.slice, str(at + 1))
            case ast.Constant(value=int(value) | float(value)):
                other = not value if isinstance(value, bool) else value + (value or 1)
                yield changed("constant", node, repr(other))


def _expressions(node: ast.AST) -> Iterator[Any]:
    """Yield the expressions of a statement: not those of statements inside it, of annotations and of f-strings."""
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.expr) and name != "annotation" and not isinstance(child, ast.JoinedStr):
                yield child
                yield from _expressions(child)
            elif isinstance(child, ast.keyword | ast.comprehension | ast.withitem):
                yield from _expressions(child)


def draw(number: int, seed: int, tree: Path, also: list[Path]) -> Iterator[dict[str, Any]]:
    """Yield so many mistakes, whose lines stand once in their file in this tree and in the others."""
    rng = random.Random(seed)
    rooms = sorted(room for room in (tree / "hpxfer").iterdir() if any(room.glob("*.py")))
    rng.shuffle(rooms)
    for turn in range(number):
        kinds = defaultdict(list)
        for path in sorted(rooms[turn % len(rooms)].rglob("*.py")):
            name = path.relative_to(tree)
            texts = [(root / name).read_text().splitlines() for root in [tree, *also] if (root / name).is_file()]
            for kind, at, mistaken in mistakes(path.read_text()):
                line = texts[0][at - 1]
                if len(texts) == 1 + len(also) and all(text.count(line) == 1 for text in texts):
                    kinds[kind].append({"file": str(name), "line": line, "mistaken": mistaken, "kind": kind})
        if kinds:
            yield rng.choice(kinds[rng.choice(sorted(kinds))])


def probe(tree: Path, drawn: list[dict[str, Any]], copy: Path) -> None:
    """Copy the tree, with a mark before the statement of each mistake."""
    left_out = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__")
    shutil.copytree(tree, copy, symlinks=True, ignore=left_out)
    marks: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for number, mistake in enumerate(drawn):
        if not mistake["file"].startswith("hpxfer/kernels/"):
            source = (tree / mistake["file"]).read_text()
            at = source.splitlines().index(mistake["line"]) + 1
            around = [s for s in ast.walk(ast.parse(source)) if isinstance(s, ast.stmt) and s.lineno <= at]
            inner = max((s.lineno, s.col_offset) for s in around if at <= (s.end_lineno or 0))
            marks[mistake["file"]].append((*inner, number))
    for file, places in marks.items():
        lines = (copy / file).read_text().splitlines()
        for line, column, number in sorted(places, reverse=True):
            lines.insert(line - 1, " " * column + f'__import__("mutations").hit({number})')
        (copy / file).write_text("\n".join(lines) + "\n")


def _record(row: dict[str, Any]) -> None:
    with open(os.environ["HPXFER_HITS"], "a") as file:
        file.write(json.dumps(row) + "\n")


def hit(number: int) -> None:
    """Record that the test of now reached this place. Workers have the test's name from their environment."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in _hit:
        _hit.add((number, test))
        _record({"hit": number, "test": test})


def pytest_runtest_logreport(report: Any) -> None:
    """Record how long a test took and what came of it."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _record({"test": report.nodeid, "s": report.duration, "when": report.when, "outcome": report.outcome})


def reaching(hits: Path, number: int, file: str) -> dict[str, float]:
    """Return the tests that reach this place, the fastest first, and their seconds.

    A fixture's results are read by other tests of the file than the one that sets it up, so all of these count. Places
    in kernels have no marks: all tests of kernels and of models count.
    """
    rows = [json.loads(line) for line in hits.read_text().splitlines()]
    seconds: dict[str, float] = defaultdict(float)
    for row in rows:
        if "s" in row and row["outcome"] != "failed":
            seconds[row["test"]] += row["s"]
    reached = [row["test"].rpartition(" ") for row in rows if row.get("hit") == number]
    direct = {test for test, _, _ in reached}
    files = {test.partition("::")[0] for test, _, phase in reached if phase == "(setup)"}
    found = [test for test in seconds if test in direct or test.partition("::")[0] in files]
    if file.startswith("hpxfer/kernels/"):
        found = [test for test in seconds if test.startswith(("tests/kernels/", "tests/model/"))]
    return {test: seconds[test] for test in sorted(found, key=lambda test: (test not in direct, seconds[test]))}


def find(tree: Path, mistake: dict[str, Any], tests: list[str], limit_s: float) -> str:
    """Return which of the tests finds the mistake, "lint", "time" if they do not end, or nothing."""
    path, names = tree / mistake["file"], tree / ".tests"
    source = path.read_text()
    lines = source.splitlines()
    lines[lines.index(mistake["line"])] = mistake["mistaken"]
    path.write_text("\n".join(lines) + "\n")
    names.write_text("\n".join(tests))
    given: dict[str, Any] = {"cwd": tree, "capture_output": True, "text": True}
    try:
        if subprocess.run([sys.executable, "-m", "ruff", "check", "-q", path], **given).returncode:
            return "lint"
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"@{names}"]
        done = subprocess.run(command, **given, timeout=limit_s) if tests else None
        if done is None or done.returncode in (0, 5):
            return ""
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0].split(" - ")[0] if failed else f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        return "time"
    finally:
        path.write_text(source)


def main() -> None:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["draw", "probe", "find"])
    parser.add_argument("list", type=Path, help="the file of the mistakes")
    parser.add_argument("--tree", type=Path, default=Path())
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--also", type=Path, action="append", default=[], help="draw only lines of this tree, too")
    parser.add_argument("--copy", type=Path, help="where `probe` copies the tree to")
    parser.add_argument("--hits", type=Path, help="what the run of the marked copy wrote")
    parser.add_argument("--budget", type=float, default=300.0, help="the seconds of tests that a mistake is looked for")
    parser.add_argument("--output", type=Path, help="where `find` writes a line per mistake, and goes on")
    given = parser.parse_args()
    if given.command == "draw":
        drawn = draw(given.number, given.seed, given.tree, given.also)
        given.list.write_text("".join(json.dumps(mistake) + "\n" for mistake in drawn))
        return
    drawn = [json.loads(line) for line in given.list.read_text().splitlines()]
    if given.command == "probe":
        probe(given.tree, drawn, given.copy)
        return
    done = len(given.output.read_text().splitlines()) if given.output.is_file() else 0
    for number, mistake in list(enumerate(drawn))[done:]:
        reached = reaching(given.hits, number, mistake["file"])
        tests = [test for test, s in zip(reached, accumulate(reached.values()), strict=True) if s <= given.budget]
        found = find(given.tree, mistake, tests, 3 * given.budget)
        row = {**mistake, "reached": len(reached), "run": len(tests), "found": found}
        with given.output.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(number, mistake["file"], mistake["kind"], len(reached), found or "NOT FOUND", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

"""How many lines of code each package has: without blanks, comments, docstrings and imports.

python -m bench.size [FOLDER ...]
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(source: str) -> int:
    """Count the lines of a file's code."""
    passed = {
        number
        for node in ast.walk(ast.parse(source))
        for each in _passed_over(node)
        for number in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    }
    lines = enumerate(source.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in passed
        for number, line in lines
    )


def _passed_over(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield an import, and the docstring of what may have one."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        yield node.body[0]


def main() -> None:
    """Print the lines of each package, and of each folder in all."""
    for folder in sys.argv[1:] or ["ingestion", "assets", "resources"]:
        packages: Counter[str] = Counter()
        for path in sorted(Path(folder).rglob("*.py")):
            packages["/".join(path.parent.parts[:2])] += lines_of_code(path.read_text("utf-8"))
        for package, count in packages.items():
            print(f"{count:>7,} {package}")
        print(f"{packages.total():>7,} in all\n")


if __name__ == "__main__":
    main()

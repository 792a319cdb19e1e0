"""Plant every bug of the list, and tell which one no test notices.

    python -m tests.mutants [part of a name …]

Results are kept in ``.mutants/`` by planted bug and state of the project, so that a run that was
broken off goes on where it was, and only what has changed is tried again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.mutants.harness import COPIED, ROOT, Result, check_baseline, copied_project, try_mutant
from tests.mutants.plan import Mutant, load, mutated

RESULTS = ROOT / ".mutants" / "results.jsonl"


def main(words: Sequence[str]) -> int:
    """Try the planted bugs whose name holds one of ``words``; 1 when one is not killed."""
    mutants = [each for each in load() if not words or any(word in each.name for word in words)]
    for mutant in mutants:
        mutated(mutant, ROOT)
    tree, known = _tree(), _known()
    results = {each: known.get(_key(each, tree)) for each in mutants}
    left = [each for each, result in results.items() if result is None]
    if left:
        results |= _try(left, tree)
    return _report(results)


def _try(mutants: Sequence[Mutant], tree: str) -> dict[Mutant, Result | None]:
    found: dict[Mutant, Result | None] = {}
    with copied_project() as copy:
        tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
        print("the tests of the list must pass before a bug is planted", flush=True)
        honest = check_baseline(copy, tests)
        if honest.verdict != "survived":
            raise SystemExit(f"without any bug {honest.by} fails: {honest.evidence}")
        for number, mutant in enumerate(mutants, 1):
            result = found[mutant] = try_mutant(mutant, copy)
            _keep(_key(mutant, tree), result)
            print(f"{number} of {len(mutants)}: {mutant.name}: {result.verdict}", flush=True)
    return found


def _report(results: dict[Mutant, Result | None]) -> int:
    killed = 0
    for mutant, result in sorted(results.items(), key=lambda item: item[0].kind):
        assert result is not None
        killed += result.verdict == "killed"
        print(
            f"{mutant.kind:2}  {result.verdict:8}  {mutant.name:45}  {result.seconds:6.1f} s  "
            f"{result.by or mutant.why}"
        )
        if result.verdict == "broken":
            print(f"    {result.evidence}")
    print(f"{killed} of {len(results)} planted bugs are killed")
    return 0 if killed == len(results) else 1


def _tree() -> str:
    """Identify the state of all that is copied, but for the list itself."""
    files = (
        file
        for name in COPIED
        for file in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts and file.name != "mutants.yaml"
    )
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return total.hexdigest()[:16]


def _key(mutant: Mutant, tree: str) -> str:
    return f"{mutant.digest} {tree}"


def _known(path: Path = RESULTS) -> dict[str, Result]:
    if not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {line["key"]: Result(**line["result"]) for line in lines}


def _keep(key: str, result: Result) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps({"key": key, "result": asdict(result)}) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

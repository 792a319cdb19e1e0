"""Plant every bug of the list, and tell which one no test notices.

    python -m tests.mutants [part of a name …]

Results are kept in ``.mutants/`` by planted bug and state of the project, so that a run that was
broken off goes on where it was, and only what has changed is tried again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from tests.mutants.harness import COPIED, Result, check_baseline, copied_project, try_mutant
from tests.mutants.plan import Mutant, load, mutated
from tests.support.world import ROOT
from tests.trials.main import parser_of, within
from tests.trials.record import Results, digest_of

RESULTS = ROOT / ".mutants" / "results.jsonl"


def main() -> int:
    """Try the planted bugs whose name holds one of ``words``; 1 when one is not killed."""
    parser = parser_of("tests.mutants", __doc__, results=RESULTS)
    parser.add_argument("words", nargs="*", help="parts of names of planted bugs")
    options = parser.parse_args()
    mutants = [
        each
        for each in load()
        if not options.words or any(word in each.name for word in options.words)
    ]
    for mutant in mutants:
        mutated(mutant, ROOT)
    results, tree = Results(file=options.results), _tree()
    known = _known(results)
    left = [each for each in mutants if _key(each, tree) not in known]
    if left and not options.report:
        _try(left, tree, results, options.minutes)
        known = _known(results)
    return _report({each: known.get(_key(each, tree)) for each in mutants})


def _known(results: Results) -> dict[str, Result]:
    return {line["key"]: Result(**line["result"]) for line in results.read()}


def _try(mutants: Sequence[Mutant], tree: str, results: Results, minutes: float) -> None:
    with copied_project() as copy:
        tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
        print("the tests of the list must pass before a bug is planted", flush=True)
        honest = check_baseline(copy, tests)
        if honest.verdict != "survived":
            raise SystemExit(f"without any bug {honest.by} fails: {honest.evidence}")
        for number, mutant in enumerate(within(minutes, mutants), 1):
            result = try_mutant(mutant, copy)
            results.add({"key": _key(mutant, tree), "result": asdict(result)})
            print(f"{number} of {len(mutants)}: {mutant.name}: {result.verdict}", flush=True)


def _report(results: dict[Mutant, Result | None]) -> int:
    killed = 0
    for mutant, result in sorted(results.items(), key=lambda item: item[0].kind):
        verdict, seconds = (result.verdict, result.seconds) if result else ("not yet", 0.0)
        killed += verdict == "killed"
        by = (result and result.by) or mutant.why
        print(f"{mutant.kind:2}  {verdict:8}  {mutant.name:45}  {seconds:6.1f} s  {by}")
        if result and verdict == "broken":
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
    return digest_of(
        str(file.relative_to(ROOT)).encode() + file.read_bytes() for file in sorted(files)
    )


def _key(mutant: Mutant, tree: str) -> str:
    return f"{mutant.digest} {tree}"


if __name__ == "__main__":
    sys.exit(main())

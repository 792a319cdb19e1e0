"""Numbers in messages agree with their nouns and verbs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from oncelake.ingestion import errors
from oncelake.ingestion.errors import RefusedError, counted
from tests.support.world import ROOT

# A noun in the plural after a number, with up to two words between them.
PLURAL = re.compile(r" (?:[a-z]+ ){0,2}?[a-z]{2,}(?<![sui])s\b")
KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, RefusedError)
}
# What ends a message, and is a sentence itself.
SENTENCES = ("said", "error.problem", "NOTHING_WRITTEN")
# Sizes that are refused for being large, and what a sample shows at least nine times.
NEVER_ONE = (
    *("characters", "a batch of", "bytes are free", "hashlib"),
    *("records/s", "values are", "different names"),
)


@pytest.mark.parametrize(
    ("number", "words", "text"),
    [
        pytest.param(1, ("record",), "1 record", id="one"),
        pytest.param(0, ("record",), "0 records", id="none"),
        pytest.param(1_200, ("batch",), "1,200 batches", id="many"),
        pytest.param(1, ("record waits", "records wait"), "1 record waits", id="one does"),
        pytest.param(2, ("record waits", "records wait"), "2 records wait", id="two do"),
    ],
)
def test_a_number_agrees_with_its_words(number: int, words: tuple[str, ...], text: str) -> None:
    """One is written in the singular, its verb too, and everything else in the plural."""
    assert counted(number, *words) == text


def test_no_message_puts_a_number_before_a_plural() -> None:
    """What may be one is written by ``counted``, which knows the singular."""
    bare = numbers_before_plurals("ingestion", "assets", "resources")

    assert [each for each in bare if not any(text in each for text in NEVER_ONE)] == []


def test_every_refusal_ends_its_problem_with_a_full_stop() -> None:
    """The remedy follows it as a sentence of its own."""
    assert [*unended_problems("ingestion", "assets", "resources")] == []


def test_every_refusal_has_a_remedy() -> None:
    """One that is not given a remedy is of a kind that has a usual one."""
    without = {
        name: place
        for place, call, _ in calls_in("ingestion", "assets", "resources")
        if (name := ast.unparse(call.func).removesuffix(".of")) in KINDS and not has_remedy(call)
    }

    assert {name for name in without if not KINDS[name].usual_remedy} == set()
    assert "ForeignTableError" in without


def unended_problems(*packages: str) -> Iterator[str]:
    """The places where an error with a remedy has a problem without a full stop."""
    for place, call, function in calls_in(*packages):
        is_refusal = has_remedy(call) or ast.unparse(call.func) in KINDS
        if is_refusal and not all(map(is_ended, texts_of(call.args[1:2], function))):
            yield place


def has_remedy(call: ast.Call) -> bool:
    """Tell whether a call names a remedy."""
    return "remedy" in {each.arg for each in call.keywords}


def calls_in(*packages: str) -> Iterator[tuple[str, ast.Call, ast.FunctionDef]]:
    """The calls in functions: the place, the call, and the function."""
    for module in (each for package in packages for each in (ROOT / package).rglob("*.py")):
        for function in ast.walk(ast.parse(module.read_text())):
            if isinstance(function, ast.FunctionDef):
                calls = (each for each in ast.walk(function) if isinstance(each, ast.Call))
                for call in calls:
                    yield f"{module.relative_to(ROOT)}:{call.lineno}", call, function


def texts_of(arguments: list[ast.expr], function: ast.FunctionDef) -> Iterator[ast.expr]:
    """The text of an argument, or the last one that its name was given."""
    for argument in arguments:
        given = [
            each.value
            for each in ast.walk(function)
            if isinstance(each, ast.Assign)
            and ast.unparse(each.targets[0]) == ast.unparse(argument)
        ]
        yield max(given, key=lambda each: each.lineno, default=argument)


def is_ended(text: ast.expr) -> bool:
    """Tell whether a text ends with a full stop, or with a sentence; another value may be any."""
    last = text.values[-1] if isinstance(text, ast.JoinedStr) else text
    if isinstance(last, ast.FormattedValue):
        return ast.unparse(last.value) in SENTENCES
    return not isinstance(last, ast.Constant) or str(last.value).endswith(".")


def numbers_before_plurals(*packages: str) -> Iterator[str]:
    """The texts of the code that put a number, as it is, before a noun in the plural."""
    for module in (each for package in packages for each in (ROOT / package).rglob("*.py")):
        for text in ast.walk(ast.parse(module.read_text())):
            if isinstance(text, ast.JoinedStr):
                for value, after in zip(text.values, text.values[1:], strict=False):
                    text_after = after.value if isinstance(after, ast.Constant) else ""
                    if is_number(value) and PLURAL.match(text_after):
                        yield f"{module.relative_to(ROOT)}:{text.lineno}: {ast.unparse(text)}"


def is_number(part: ast.expr) -> bool:
    """Tell whether a part of a text is a count: with separators, or a length or sum."""
    if not isinstance(part, ast.FormattedValue):
        return False
    if isinstance(part.value, ast.Name) and part.value.id.isupper():
        return False
    called = ast.unparse(part.value.func) if isinstance(part.value, ast.Call) else ""
    spec = ast.unparse(part.format_spec) if part.format_spec else ""
    return "," in spec or called in {"len", "sum"} or called.endswith(".total")

"""Hostile JSON, a class a line: what the record is called, its bytes, and why it is refused.

A reason of ``None`` says that the record is a row. Every class has one key of its own, so that the
rows can be told apart; where the bytes cannot carry one, none is needed: they are refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple

SCHEMA: Final = (
    "id INT NOT NULL, name STRING, amount DECIMAL(5, 2), wide DECIMAL(38, 10), ratio DOUBLE, "
    "small FLOAT, tiny TINYINT, big BIGINT, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "ok BOOLEAN, blob BINARY, code VARCHAR(3), tags ARRAY<STRING>, counts MAP<STRING, INT>, "
    "who STRUCT<name: STRING NOT NULL, age: INT, size: DOUBLE>, "
    "lines ARRAY<STRUCT<n: INT NOT NULL, price: DECIMAL(5, 2)>>"
)


class Message(NamedTuple):
    """One class of message."""

    name: str
    value: bytes
    reason: str | None


def _field(number: int, text: str) -> bytes:
    """An object with a key of its own and one more field, as text."""
    return f'{{"id": {number}, {text}}}'.encode()


_DOCUMENTS: Final[tuple[tuple[str, bytes, str | None], ...]] = (
    ("empty bytes", b"", "empty_value"),
    ("white space", b" \t\r\n", "empty_value"),
    ("null document", b"null", "not_an_object"),
    ("number document", b"7", "not_an_object"),
    ("text document", b'"seven"', "not_an_object"),
    ("array document", b'[{"id": 1}]', "not_an_object"),
    ("empty array", b"[]", "not_an_object"),
    ("empty object", b"{}", "missing_key"),
    ("two documents", b'{"id": 1} {"id": 2}', "trailing_data"),
    ("two lines", b'{"id": 1}\n{"id": 2}\n', "trailing_data"),
    ("two documents with a comma", b'{"id": 1},{"id": 2}', "trailing_data"),
    ("trailing word", b'{"id": 1} and more', "trailing_data"),
    ("trailing brace", b'{"id": 1}}', "trailing_data"),
    ("trailing bracket", b'{"id": 1}]', "trailing_data"),
    ("bracket that closes the wrapper", b'{"id": 1}] {"id": 2}', "trailing_data"),
    ("brackets that mend the wrapper", b'{"id": 1}],[{"id": 2}', "trailing_data"),
    ("brace that closes the wrapper", b'{"id": 1}, "y": [1]', "trailing_data"),
    ("trailing bracket of an own mark", b'{"id": 1, "_end_of_record": 1} }', "trailing_data"),
    ("text that ends like an object", b'{"id": 12, "name": "}', "malformed_json"),
    ("trailing null byte", b'{"id": 1}\x00', "trailing_data"),
    ("cut short", b'{"id": 1, "name": "Ann', "malformed_json"),
    ("cut before the brace", b'{"id": 1', "malformed_json"),
    ("no quotes", b"{id: 1}", "malformed_json"),
    ("single quotes", b"{'id': 1}", "malformed_json"),
    ("trailing comma", b'{"id": 1,}', "malformed_json"),
    ("comment", b'{"id": 1 /* one */}', "malformed_json"),
    ("byte order mark", b'\xef\xbb\xbf{"id": 1}', "malformed_json"),
    ("NaN", b'{"id": 1, "ratio": NaN}', "malformed_json"),
    ("NaN in an unknown field", b'{"id": 1, "x": NaN}', "malformed_json"),
    ("single quotes in an unknown field", b'{"id": 1, "x": \'a\'}', "malformed_json"),
    ("lone surrogate in an unknown field", b'{"id": 1, "x": "\\ud800"}', "lone_surrogate"),
    ("no UTF-8 in an object", b'{"id": 1, "who": {"name": "\xff"}}', "invalid_utf8"),
    ("no UTF-8 in an unknown field", b'{"id": 1, "x": "\xff"}', "invalid_utf8"),
    ("Infinity", b'{"id": 1, "ratio": -Infinity}', "malformed_json"),
    ("leading zero", b'{"id": 01}', "malformed_json"),
    ("plus sign", b'{"id": +1}', "malformed_json"),
    ("hexadecimal", b'{"id": 0x1}', "malformed_json"),
    ("number without a digit behind the point", b'{"id": 1, "ratio": 1.}', "malformed_json"),
    ("control character in text", b'{"id": 1, "name": "a\nb"}', "malformed_json"),
    ("unknown escape", b'{"id": 1, "name": "\\x41"}', "malformed_json"),
    ("too deep", b'{"id": 1, "x": ' + b"[" * 5000 + b"]" * 5000 + b"}", "malformed_json"),
    ("duplicate name", b'{"id": 1, "id": 2}', "duplicate_name"),
    ("duplicate name of nulls", b'{"id": 1, "name": null, "name": null}', "duplicate_name"),
    ("duplicate name of a null", b'{"id": 1, "name": "a", "name": null}', "duplicate_name"),
    ("duplicate unknown name", b'{"id": 1, "x": 1, "x": 1}', "duplicate_name"),
    ("duplicate name below", b'{"id": 1, "who": {"name": "a", "name": "b"}}', "malformed_json"),
    ("duplicate name by escape", b'{"id": 1, "\\u0069d": 2}', "duplicate_name"),
    ("lone surrogate", b'{"id": 1, "name": "\\ud800"}', "lone_surrogate"),
    ("reversed surrogates", b'{"id": 1, "name": "\\udc00\\ud800"}', "lone_surrogate"),
    ("no UTF-8", b'{"id": 1, "name": "\xff"}', "invalid_utf8"),
    ("overlong UTF-8", b'{"id": 1, "name": "\xc0\xaf"}', "invalid_utf8"),
    ("UTF-8 of a surrogate", b'{"id": 1, "name": "\xed\xa0\x80"}', "invalid_utf8"),
    ("UTF-16", '{"id": 1}'.encode("utf-16"), "invalid_utf8"),
    ("Latin-1", '{"id": 1, "name": "Zoë"}'.encode("latin-1"), "invalid_utf8"),
    ("gzip", b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "invalid_utf8"),
    ("registry framing", b'\x00\x00\x00\x00\x01{"id": 1}', "malformed_json"),
    ("key in another case", b'{"ID": 1}', "wrong_case"),
    ("no key", b'{"name": "Ann"}', "missing_key"),
    ("null key", b'{"id": null, "name": "Ann"}', "missing_key"),
    ("text as the key", b'{"id": "1"}', "wrong_type"),
    ("fraction as the key", b'{"id": 1.0}', "wrong_type"),
    ("exponent as the key", b'{"id": 1e0}', "wrong_type"),
    ("key too large", b'{"id": 2147483648}', "wrong_type"),
    ("key far too large", b'{"id": ' + b"9" * 900 + b"}", "wrong_type"),
    ("number of 2000 digits", b'{"id": 1, "ratio": 0.' + b"1" * 2000 + b"}", "malformed_json"),
    ("object as the key", b'{"id": {"id": 1}}', "wrong_type"),
    ("column in another case", b'{"id": 1, "Name": "Ann"}', "wrong_case"),
    ("field in another case below", b'{"id": 1, "who": {"name": "a", "AGE": 3}}', "wrong_case"),
)

_FIELDS: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("nothing special", '"name": "Ann"', None),
    ("astral character", '"name": "\\ud83d\\ude00 \U0001f600"', None),
    ("null character", '"name": "a\\u0000b"', None),
    ("text like a number", '"name": "1.50"', None),
    ("text like an object", '"name": "{\\"a\\": 1}"', None),
    ("text like null", '"name": "null"', None),
    ("empty text", '"name": ""', None),
    ("explicit null", '"name": null, "amount": null, "tags": null, "who": null', None),
    ("number as text", '"name": 1.50', "wrong_type"),
    ("truth for text", '"name": true', "wrong_type"),
    ("object as text", '"name": {"first": "Ann"}', "wrong_type"),
    ("array as text", '"name": ["Ann"]', "wrong_type"),
    ("exact decimal", '"amount": -123.45', None),
    ("decimal with zeros behind", '"amount": 1.5000', None),
    ("whole decimal", '"amount": 7', None),
    ("minus nothing", '"amount": -0.00', None),
    ("decimal of all digits", '"wide": 1234567890123456789012345678.0123456789', None),
    ("rounding into a decimal", '"amount": 1.239', "inexact_number"),
    ("exponent in a decimal", '"amount": 1e2', "inexact_number"),
    ("decimal too large", '"amount": 1000.00', "out_of_range"),
    ("decimal of 39 digits", '"wide": 0.000000000000000000000000000000000000001', "inexact_number"),
    ("decimal of 50 digits", '"wide": ' + "9" * 50, "inexact_number"),
    ("text as a decimal", '"amount": "1.50"', "wrong_type"),
    ("text with a comma as a decimal", '"amount": "1,0"', "wrong_type"),
    ("truth as a decimal", '"amount": true', "wrong_type"),
    ("double", '"ratio": 0.1, "small": 0.1', None),
    ("double with an exponent", '"ratio": -1.5e-300', None),
    ("double nearest", '"ratio": 0.1000000000000000055511151231257827', None),
    ("whole double", '"ratio": 12345678901234567890', None),
    ("overflow to infinity", '"ratio": 1e400', "not_finite"),
    ("overflow of a float", '"small": 1e39', "not_finite"),
    ("NaN as text", '"ratio": "NaN"', "not_finite"),
    ("infinity as text", '"ratio": "-Infinity"', "not_finite"),
    ("number as text in a double", '"ratio": "1.5"', "wrong_type"),
    ("byte too large", '"tiny": 128', "wrong_type"),
    ("largest long", '"big": 9223372036854775807', None),
    ("long too large", '"big": 9223372036854775808', "wrong_type"),
    ("day", '"day": "2024-02-29"', None),
    ("day that never was", '"day": "2023-02-29"', "bad_time"),
    ("day without zeros", '"day": "2024-2-3"', "bad_time"),
    ("day of the year 0", '"day": "0000-01-01"', "bad_time"),
    ("day of the year 10000", '"day": "10000-01-01"', "bad_time"),
    ("day as a number", '"day": 19000', "bad_time"),
    ("moment", '"at": "2024-02-29T23:59:59.123456+05:30"', None),
    ("moment with a space", '"at": "2024-02-29 23:59:59Z"', None),
    ("moment in seconds", '"at": 1700000000', None),
    ("moment before the epoch", '"at": -1', None),
    ("moment in milliseconds", '"at": 1700000000000', "bad_time"),
    ("moment in nanoseconds", '"at": "2024-01-01T00:00:00.123456789Z"', "bad_time"),
    ("moment with a leap second", '"at": "2016-12-31T23:59:60Z"', "bad_time"),
    ("moment with seconds as text", '"at": "1700000000"', "bad_time"),
    ("moment in words", '"at": "yesterday"', "bad_time"),
    ("moment beyond the years", '"at": "9999-12-31T23:59:59-12:00"', "bad_time"),
    ("moment in a far zone", '"at": "2024-01-01T00:00:00+19:00"', "bad_time"),
    ("local moment", '"local": "2024-03-31T02:30:00"', None),
    ("local moment with a zone", '"local": "2024-03-31T02:30:00Z"', "bad_time"),
    ("truth", '"ok": true', None),
    ("truth as text", '"ok": "true"', "wrong_type"),
    ("truth as a number", '"ok": 1', "wrong_type"),
    ("bytes", '"blob": "AAECAw=="', None),
    ("no bytes", '"blob": ""', None),
    ("bytes without padding", '"blob": "AAECAw"', "bad_base64"),
    ("bytes as a number", '"blob": 1234', "wrong_type"),
    ("short text", '"code": "abc"', None),
    ("text too long", '"code": "abcd"', "too_long"),
    ("list", '"tags": ["a", null, "c"]', None),
    ("scalar as a list", '"tags": "a"', "wrong_type"),
    ("number in a list of text", '"tags": ["a", 1]', "wrong_type"),
    ("map", '"counts": {"a": 1, "b": null}', None),
    ("text in a map of numbers", '"counts": {"a": "1"}', "wrong_type"),
    ("object", '"who": {"name": "Ann", "age": 3}', None),
    ("fraction in an object", '"who": {"name": "Ann", "size": 1.75}', None),
    ("negative zero in an object", '"who": {"name": "Ann", "size": -0.0}', None),
    ("small number in an object", '"who": {"name": "Ann", "size": 1e-300}', None),
    ("overflow in an object", '"who": {"name": "Ann", "size": 1e400}', "not_finite"),
    ("number too large in an object", '"who": {"name": "Ann", "age": 3000000000}', "wrong_type"),
    ("number as text in an object", '"who": {"name": 15}', "wrong_type"),
    ("another case in an object", '"who": {"name": "Ann", "Age": 3}', "wrong_case"),
    ("half a character in an object", '"who": {"name": "\\ud800"}', "lone_surrogate"),
    ("colon in an object", '"who": {"name": "a: b", "age": 1}', None),
    ("no object", '"who": null, "tags": null', None),
    ("nulls in an object", '"who": {"name": "Ann", "age": null}', None),
    ("empty lists", '"tags": [], "lines": []', None),
    ("list of nothing", '"tags": [null], "lines": [null]', None),
    ("list in a list", '"tags": [["a"]]', "wrong_type"),
    ("missing field of an object", '"who": {"age": 3}', "missing_required"),
    ("null field of an object", '"who": {"name": null}', "missing_required"),
    ("empty object below", '"who": {}', "missing_required"),
    ("list of objects", '"lines": [{"n": 1, "price": 1.50}, null]', None),
    ("missing field in a list", '"lines": [{"n": 1}, {"price": 1}]', "missing_required"),
    (
        "missing field in a full list",
        '"lines": [{"n": 1, "price": 1}, {"price": 1}]',
        "missing_required",
    ),
    ("whole number in a list", '"lines": [{"n": 1, "price": 999}]', None),
    ("number too large in a list", '"lines": [{"n": 1, "price": 1000}]', "out_of_range"),
    ("mixed list", '"lines": [{"n": 1}, 2]', "wrong_type"),
    ("rounding in a list", '"lines": [{"n": 1, "price": 1.239}]', "inexact_number"),
    ("unknown field", '"colour": "red"', None),
    ("unknown fields and nulls", '"name": null, "x": 1, "y": null', None),
    ("unknown field and an escaped colon", '"name": "\\u003a", "x": 1', None),
    ("unknown field and colons", '"name": "a:b", "local": "2024-03-31T02:30:00", "x": 1', None),
    ("number as text beside itself as text", '"name": 1.5, "code": "1.5"', "wrong_type"),
    ("number as text under an escaped name", '"n\\u0061me": 15', "wrong_type"),
    ("question and an escape", '"name": "what?", "code": "\\u00e9"', None),
    ("replacement character", '"name": "\ufffd"', None),
    ("unknown field below", '"lines": [{"n": 1, "x": {"y": 2}}]', None),
    ("name with a dot", '"who.name": "Ann"', None),
    ("name of our own", '"_offset": 7, "_corrupt_record": "x"', None),
)

MESSAGES: Final = (
    *(Message(*each) for each in _DOCUMENTS),
    *(
        Message(name, _field(1000 + number, text), reason)
        for number, (name, text, reason) in enumerate(_FIELDS)
    ),
)

"""The conditions under which a batch is published: ``expect``, ``guard`` and ``publish``.

A rule speaks of one row, a guard of the whole batch and of what was there before it. What may hold
a batch back is judged before the commit, which needs ``publish: checked``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from oncelake.ingestion.declaration.parts import Allowed, Count, Part, Share, Sql

RuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
Factor = Annotated[float, Field(strict=True, gt=1), Allowed("write a number above 1, such as 10")]
Number = Annotated[int, Field(strict=True, ge=0), Allowed("write a whole number, at least 0")]
Bounds = Annotated[
    tuple[Number, Number], Allowed("write the least and the most, such as [1, 100000]")
]
# What stands before a rule's name where the constraints of a table stand, too.
_OF_A_RULE: Final = "expect "


class Rule(Part):
    """A condition that each row should meet; one that is null is not met."""

    rule: Sql = Field(description="SQL condition over the table's columns.")
    on_miss: Literal["warn", "quarantine", "refuse"] = Field(
        "warn",
        description="What becomes of a row that does not meet it: it is counted, its record goes "
        "to quarantine, or its batch is not published.",
    )

    @model_validator(mode="before")
    @classmethod
    def _text_is_a_rule(cls, value: Any) -> Any:
        return {"rule": value} if isinstance(value, str) else value


class Publish(Part):
    """When the rows of a batch become visible, and where those of one that is not published are.

    A word stands for ``when``.
    """

    when: Literal["always", "checked"] = Field(
        "always", description="Whatever is found; or if nothing is missed. With a branch: checked."
    )
    branch: RuleName | None = Field(
        None, description="The branch of an Iceberg table that shows a batch which is withheld."
    )

    @model_validator(mode="before")
    @classmethod
    def _word_is_when(cls, value: Any) -> Any:
        return {"when": value} if isinstance(value, str) else value

    @field_validator("branch")
    @classmethod
    def _main_is_the_table(cls, value: str | None) -> str | None:
        if value == "main":
            raise ValueError("main is the table itself; write another name, such as audit")
        if (value or "").startswith("oncelake_"):
            raise ValueError("these are for rebuilds; write another name, such as audit")
        return value

    @property
    def is_checked(self) -> bool:
        """Whether a batch is judged before its commit."""
        return self.when == "checked" or self.branch is not None


class Guard(Part):
    """What a batch may be beside the table and the batches before it, or it is not published.

    `true` stands for {share_of_deletes: 0.5, growth: 10, at_least: 100}.
    """

    rows_between: Bounds | None = Field(
        None, description="How many rows a batch inserts, updates and deletes, at least and most."
    )
    share_of_deletes: Share | None = Field(
        None, description="The share of the table's rows that a batch may delete."
    )
    new_keys: Share | None = Field(
        None, description="The share of a batch's keys that may be new to the table."
    )
    growth: Factor | None = Field(
        None,
        description="How many times the records of a batch may be the median of the last ten, "
        "from the fourth batch on.",
    )
    at_least: Count | None = Field(
        None,
        description="Batches of fewer records are not judged, and a median of fewer counts as so "
        "many. Left out: all are.",
    )

    @model_validator(mode="before")
    @classmethod
    def _true_is_a_guard(cls, value: Any) -> Any:
        if isinstance(value, bool):
            defaults = {"share_of_deletes": 0.5, "growth": 10.0, "at_least": 100}
            return defaults if value else {}
        return value

    @field_validator("rows_between")
    @classmethod
    def _goes_upwards(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value and value[0] > value[1]:
            raise ValueError(f"{value[0]} lies above {value[1]}; write the lower number first")
        return value

    @property
    def is_declared(self) -> bool:
        """Whether any batch may be held back by it."""
        return any(value is not None for name, value in self if name != "at_least")


def quarantining(rules: Mapping[str, Rule]) -> dict[str, str]:
    """Return the rules whose misses go to quarantine, by the names of constraints."""
    return {
        f"{_OF_A_RULE}{name}": each.rule
        for name, each in rules.items()
        if each.on_miss == "quarantine"
    }


def rule_of(constraint: str) -> str | None:
    """Return the name of the rule that a constraint's name stands for, if it does for one."""
    return constraint.removeprefix(_OF_A_RULE) if constraint.startswith(_OF_A_RULE) else None

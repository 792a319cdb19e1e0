"""The types of a declaration's fields, and the fields that are maps of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails
from pydantic_core.core_schema import custom_error_schema

from oncelake.ingestion.declaration.expectations import argument_violations
from oncelake.ingestion.declaration.formats import FORMATS, Options
from oncelake.ingestion.declaration.names import hint
from oncelake.ingestion.declaration.partitions import readable_partition
from oncelake.ingestion.declaration.rules.violations import RuleViolationsError
from oncelake.ingestion.declaration.sql import readable_sql


@dataclass(frozen=True, slots=True)
class Allowed:
    """All that a value must be, in one sentence, which is the error for any wrong value."""

    text: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Replace every error of the type by the sentence."""
        return custom_error_schema(handler(source), "allowed", custom_error_message=self.text)


# Strict whole numbers and shares: `true` is not 1, and "5" is text.
Count = Annotated[
    int, Field(strict=True, gt=0), Allowed("write a whole number above 0, such as 100")
]
# A window of days is subtracted from today, one of minutes given to Dagster: both have an end.
Days = Annotated[
    int,
    Field(strict=True, gt=0, le=36_500),
    Allowed("write a whole number of days from 1 to 36500, such as 7"),
]
Minutes = Annotated[
    int,
    Field(strict=True, gt=0, le=525_600),
    Allowed("write a whole number of minutes from 1 to 525600, such as 60"),
]
PauseSeconds = Annotated[
    int,
    Field(strict=True, ge=5),
    Allowed("write a whole number of seconds, at least 5, such as 60"),
]
Offset = Annotated[
    int, Field(strict=True, ge=0), Allowed("write a whole number, at least 0, such as 1200")
]
PartitionNumber = Annotated[
    int, Field(ge=0), Allowed("a partition is a whole number, at least 0, such as 0")
]
Share = Annotated[
    float, Field(strict=True, ge=0, le=1), Allowed("write a number from 0 to 1, such as 0.1")
]
Flag = Annotated[bool, Field(strict=True)]
Topic = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
Sql = Annotated[str, StringConstraints(pattern=r"\S"), AfterValidator(readable_sql)]
PartitionText = Annotated[str, AfterValidator(readable_partition)]
DottedName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]
Pattern = Annotated[str, StringConstraints(min_length=1)]
TombstonePolicy = Literal["delete", "ignore", "quarantine"]
ExtraFields = Literal["ignore", "keep", "reject"]
# The treatment of a column that a record leaves out because it has not changed.
Unavailable = Literal["keep", "null"]
Severity = Literal["critical", "warning", "info"]
Owner = Annotated[str, StringConstraints(pattern=r"^(team:.+|[^@\s]+@[^@\s]+\.[^@\s]+)$")]
# Tags as Dagster accepts them: a key is a word, optionally with a word and a slash before it.
Group = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+$")]
TagKey = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}$")
]
TagValue = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{0,63}$")]
Cron = Annotated[str, StringConstraints(pattern=r"^(@[a-z]+|\S+( +\S+){4})$")]


# What is wrong with an option of a format, where the library's words say less.
_OF_OPTIONS: Final = {
    "dict_type": "must be a map",
    "literal_error": "write one of: {expected}",
    "string_type": "must be text",
    "bool_type": "write true or false",
    "int_type": "must be a whole number",
}


class Part(BaseModel):
    """Frozen, and strict about unknown keys, as everything a person writes must be."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FormatSpec(BaseModel):
    """The format of the values, with its options beside ``type``."""

    model_config = ConfigDict(frozen=True, extra="allow")

    is_of_keys: ClassVar[bool] = False

    type: str = Field("json", description="The format's name.")

    @classmethod
    def names(cls) -> list[str]:
        """Return the formats that there are."""
        return [name for name, each in FORMATS.items() if each.for_values]

    @field_validator("type")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return one_of(dict.fromkeys(cls.names()), name)

    @model_validator(mode="after")
    def _options_are_known(self) -> FormatSpec:
        try:
            _ = self.options
        except ValidationError as error:
            problems = dict.fromkeys(map(self._problem, error.errors()))
            raise ValueError("; ".join(problems)) from None
        return self

    def _problem(self, details: ErrorDetails) -> str:
        # What pydantic adds where an option may have several forms is no part of its name.
        name = ".".join(part for part in map(str, details["loc"]) if "[" not in part)
        known = FORMATS[self.type].options_of(is_key=self.is_of_keys).model_fields
        if details["type"] == "extra_forbidden":
            options = f"it has: {', '.join(known)}" if known else "it has none"
            return f"`{self.type}` has no option `{name}`; {options}"
        if details["type"] == "missing":
            return f"`{self.type}` needs the option `{name}`"
        says = _OF_OPTIONS.get(details["type"])
        problem = details["msg"].removeprefix("Value error, ")
        problem = says.format(**details.get("ctx", {})) if says else problem
        return f"option `{name}`: {problem}" if name else problem

    @property
    def options(self) -> Options:
        """The options that a person wrote beside ``type``."""
        options = FORMATS[self.type].options_of(is_key=self.is_of_keys)
        return options.model_validate(self.model_extra or {})

    @property
    def fills_variants(self) -> bool:
        """Whether any of its values can be a VARIANT."""
        return self.type in ("json", "avro") or self.options.uses_registry


class KeyFormatSpec(FormatSpec):
    """The format of the Kafka keys, with its options beside ``type``."""

    is_of_keys: ClassVar[bool] = True

    @classmethod
    def names(cls) -> list[str]:
        """Return the formats that there are."""
        return [name for name, each in FORMATS.items() if each.for_keys]


class Starting(Part):
    """Where the very first run begins: by a word, by a time, or by offsets.

    It is resolved to offsets once, when the table is made, and never again.
    """

    at: Literal["earliest", "latest"] = Field(
        "earliest", description="The first record that Kafka still has, or the end as it is then."
    )
    timestamp: AwareDatetime | None = Field(
        None, description="The first record of each partition that Kafka dates this or later."
    )
    offsets: Mapping[Topic, Mapping[PartitionNumber, Offset]] | None = Field(
        None, description="topic: {partition: offset}, for every partition."
    )

    @model_validator(mode="after")
    def _is_one(self) -> Starting:
        if len(self.model_fields_set) > 1:
            raise ValueError("write one of `earliest`, `latest`, {timestamp: …}, {offsets: …}")
        return self


class QuarantineRate(Part):
    """The share of records that may be quarantined before a run's check turns, or a run stops.

    The rate is records quarantined over records read: of the run that ends for the check, and of
    a single batch for the stop, which comes before anything of that batch is written.
    """

    warn_above: Share = Field(0.0, description="Above this share the check warns.")
    fail_above: Share = Field(0.1, description="Above this share the check fails.")
    stop_above: Share | None = Field(
        None,
        description="Above this share of a batch the run stops before writing it; 1 never stops. "
        "Left out: 0.5, in batches of 100 records or more.",
    )


class FollowPace(Part):
    """How often ``oncelake follow`` runs a stream: each run that finds records is a commit."""

    every_seconds: Count = Field(
        5, description="At least so long after the begin of one run the next begins."
    )
    min_records: Count = Field(
        100, description="So many unread records begin a run; fewer wait for max_wait_seconds."
    )
    max_wait_seconds: Count = Field(
        30, description="So long the first unread record waits at most for others to join it."
    )


class Maintenance(Part):
    """The upkeep by ``oncelake maintain``; Dagster runs it every night."""

    nightly: Flag = Field(
        True, description="Whether Dagster's schedule `maintain` includes the stream."
    )
    target_file_mb: Count = Field(128, description="Files smaller than this are compacted.")
    keep_tombstones_days: Days | None = Field(
        None,
        description="A delete is removed after this many days; an older record that arrives "
        "after that would bring its key back. Left out: never.",
    )
    keep_quarantine_days: Days | None = Field(
        None,
        description="Key, value and headers of a record that nobody has redriven are removed "
        "after this many days; its place and reason stay. Left out: never.",
    )


_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
Duration = Annotated[str, StringConstraints(pattern=r"^[0-9]+ (second|minute|hour|day)s?$")]


class Window(Part):
    """Windows of event time, one after the other: a record belongs to exactly one."""

    column: str = Field(description="The TIMESTAMP column that says when; or _timestamp.")
    every: Duration = Field(description="How long a window is, such as `1 hour` or `15 minutes`.")
    allowed_delay: Duration = Field(
        "0 seconds", description="How much later than others a record may come; for the clock."
    )

    @property
    def every_seconds(self) -> int:
        """How long a window is."""
        return seconds_of(self.every)

    @property
    def delay_seconds(self) -> int:
        """How much later than others a record may come."""
        return seconds_of(self.allowed_delay)

    @field_validator("every")
    @classmethod
    def _is_some_time(cls, every: str) -> str:
        if not seconds_of(every):
            raise ValueError("a window takes some time; write for example `1 hour`")
        return every


def seconds_of(duration: str) -> int:
    """Return the seconds of a ``Duration``."""
    number, _, unit = duration.partition(" ")
    return int(number) * _UNITS[unit.removesuffix("s")]


class Expectation(BaseModel):
    """One Great Expectations expectation: its type, its severity, its own arguments beside them."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Annotated[str, StringConstraints(pattern=r"^expect_[a-z0-9_]+$")] = Field(
        description="Its name in Great Expectations, such as expect_column_values_to_be_unique."
    )
    severity: Severity = Field("critical", description="Great Expectations' own severities.")

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The expectation's own arguments, as written."""
        return self.model_extra or {}

    @model_validator(mode="after")
    def _is_one(self) -> Expectation:
        if violations := argument_violations(self.type, self.arguments):
            raise RuleViolationsError(violations)
        return self


def one_of(known: Mapping[Any, object], name: str) -> str:
    """Return ``name`` if it is known, else raise a ``ValueError`` that names the nearest."""
    if name not in known:
        choices = f"write one of: {', '.join(known)}{hint(name, known)}"
        raise ValueError(f"there is no {name!r}; {choices}")
    return name

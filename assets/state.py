"""Streams whose topics, and columns of a registry, Dagster keeps: a state-backed component.

What ``oncelake discover`` writes beside a declaration is the component's state here. It is found by
the same code, starts from what was known, and is read by runs from a folder of copies.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import dagster as dg
from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from dagster_shared.serdes.objects.models.defs_state_info import (
    CODE_SERVER_STATE_VERSION,
    LOCAL_STATE_VERSION,
)
from pydantic import BaseModel, TypeAdapter

from oncelake.assets.component import Streams, folder_of, write_files
from oncelake.ingestion.declaration.files.loader import files_in, outlines_in
from oncelake.ingestion.declaration.files.topics import KEPT_BY, SUFFIX
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.settings import load_settings
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource

_IN_STORAGE: Final = "VERSIONED_STATE_STORAGE"
_AT_LOAD: Final = "LEGACY_CODE_SERVER_SNAPSHOTS"


def _by_default() -> DefsStateConfigArgs:
    """Keep the state where it outlives builds; `dagster dev` and `dg` load it without Kafka."""
    return DefsStateConfigArgs.versioned_state_storage().model_copy(
        update={"refresh_if_dev": False}
    )


@dataclass(kw_only=True)
class StateBackedStreams(dg.StateBackedComponent, Streams):
    """Streams whose topics, and columns of a schema registry, are the component's state.

    `dg utils refresh-defs-state` asks Kafka and the registry for them. Until it has, what
    `oncelake discover` has written beside the files of the streams counts.
    """

    defs_state: ResolvedDefsStateConfig = field(default_factory=_by_default)

    def __post_init__(self) -> None:
        """Begin with nothing known.

        Raises:
            InvalidSpecError: the state would be forgotten with each code server, and a topic that
                is gone with it, whose table stays.
        """
        super().__post_init__()
        if self.defs_state.management_type.value == _AT_LOAD:
            raise InvalidSpecError(
                f"defs_state: {_AT_LOAD} forgets the topics that are gone. Next: write "
                f"management_type: {_IN_STORAGE}"
            )
        self._known: dict[str, str] = {}
        self._base, self._place = Path(), self.jobs.prefix

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Load it; its key is its place in the project, unless the page says another."""
        loaded = super(dg.StateBackedComponent, cls).load(attributes, context)
        at = context.component_loc.get_display_key(context.defs_module_path)
        loaded._base, loaded._place = folder_of(context), f"{context.defs_module_name}/{at}"
        context.component_tree.mark_component_defs_state_key(
            defs_state_key=loaded.defs_state_config.key, loc=context.component_loc
        )
        return loaded

    @property
    def defs_state_config(self) -> DefsStateConfig:
        """Where the state is kept, and under which key."""
        return DefsStateConfig.from_args(self.defs_state, f"Streams[{self._place}]")

    def build_defs_from_state(
        self, context: dg.ComponentLoadContext, state_path: Path | None
    ) -> dg.Definitions:
        """Wire the streams by what is known of their topics.

        Raises:
            InvalidSpecError: what is known cannot be read.
        """
        self._known = _read(state_path) if state_path else {}
        return self.definitions(folder_of(context))

    def write_state_to_path(self, state_path: Path) -> None:
        """Find topics and columns as `oncelake discover` does; what was known stays.

        Raises:
            DependencyError: Kafka or the schema registry does not answer; the state stays.
            InvalidSpecError: of a file no topic is known, or what is known cannot be read; the
                state stays.
        """
        from oncelake.ingestion.operations.discover import discover

        self._known, problems = self._read_last(state_path), []
        lake = super()._lake_resource(self._base)
        settings = load_settings(**lake.given(), **KafkaResource(**self.kafka).given())
        with TemporaryDirectory() as place:
            folder = write_files(self._files(settings.streams), Path(place))
            for outline in outlines_in(folder):
                try:
                    (found := discover(outline, settings)).write()
                except InvalidSpecError as error:
                    problems.append(str(error).replace(f"{folder}/", ""))
                    continue
                for topic, why in found.unknown.items():
                    dg.get_dagster_logger().warning(f"{topic}: no columns are known: {why}")
            state = {each.name: each.read_text("utf-8") for each in folder.glob(f"*{SUFFIX}")}
        if problems:
            raise InvalidSpecError("\n".join(problems))
        # What is known of a file that is not declared here counts once it is again.
        partial = state_path.with_name(f"{state_path.name}.partial")
        partial.write_text(json.dumps(self._known | state, indent=2, sort_keys=True), "utf-8")
        partial.replace(state_path)

    def _lake_resource(self, base: Path) -> LakeResource:
        """Let everything read copies of the declarations, beside what is known of their topics."""
        lake = super()._lake_resource(base)
        settings = load_settings(**lake.given())
        return lake.reading(write_files(self._files(settings.streams), settings.state))

    def _files(self, folder: Path) -> dict[str, bytes]:
        declared = files_in(folder)
        beside = {each.with_suffix(SUFFIX).name: each.with_suffix(SUFFIX) for each in declared}
        command = f"dg utils refresh-defs-state --defs-state-key '{self.defs_state_config.key}'"
        return {
            **{each.name: _content(each) for each in declared},
            **{name: _content(each) for name, each in beside.items() if each.exists()},
            **{name: self._known[name].encode() for name in beside.keys() & self._known.keys()},
            KEPT_BY: command.encode(),
        }

    def _read_last(self, state_path: Path) -> dict[str, str]:
        """Return the state that a new one starts from."""
        # Dagster has no public name for where it keeps the state of components.
        from dagster._core.storage.defs_state.base import DefsStateStorage

        storage, key = DefsStateStorage.get(), self.defs_state_config.key
        version = storage.get_latest_version(key) if storage else None
        is_stored = version not in (None, LOCAL_STATE_VERSION, CODE_SERVER_STATE_VERSION)
        if storage and version and is_stored and not state_path.exists():
            storage.download_state_to_path(key, version, state_path)
        return _read(state_path) if state_path.exists() else {}


def _read(state: Path) -> dict[str, str]:
    """Return the files of topics that a state has, by name."""
    try:
        return TypeAdapter(dict[str, str]).validate_json(state.read_bytes())
    except ValueError:
        problem = "the state of the topics is not as it was written"
        remedy = "Next: restore it, or name another key in defs_state"
        raise InvalidSpecError(f"{problem}. {remedy}") from None


def _content(file: Path) -> bytes:
    """Return the content of a file; none of a folder, or of a link that leads elsewhere.

    An empty declaration is a broken stream.
    """
    with suppress(OSError):
        if file.resolve().is_relative_to(file.parent.resolve()):
            return file.read_bytes()
    return b""

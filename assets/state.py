"""Streams whose topics, and columns of a registry, Dagster keeps: a state-backed component.

What ``oncelake discover`` writes beside a declaration is the component's state here. It is found by
the same code, starts from what was known, and is read by runs from a folder of copies.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import dagster as dg

# Dagster has no public name for where it keeps the state of components.
from dagster._core.storage.defs_state.base import DefsStateStorage
from dagster.components import DefsStateConfig, DefsStateConfigArgs, ResolvedDefsStateConfig
from dagster_shared.serdes.objects.models.defs_state_info import DefsStateManagementType
from pydantic import BaseModel

from oncelake.assets.component import Streams, folder_of, write_files
from oncelake.ingestion.declaration.files.loader import files_in, outlines_in
from oncelake.ingestion.declaration.files.topics import KEPT_BY, SUFFIX
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.settings import load_settings
from oncelake.resources.kafka import KafkaResource
from oncelake.resources.lake import LakeResource

_IN_STORAGE = DefsStateManagementType.VERSIONED_STATE_STORAGE
_AT_LOAD = DefsStateManagementType.LEGACY_CODE_SERVER_SNAPSHOTS
_LOCAL = DefsStateManagementType.LOCAL_FILESYSTEM


def _by_default() -> DefsStateConfigArgs:
    """Keep the state in the project; `dagster dev` and `dg` load it where Kafka is out of reach."""
    return DefsStateConfigArgs(management_type=_LOCAL, refresh_if_dev=False)


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
        if self.defs_state.management_type is _AT_LOAD:
            raise InvalidSpecError(
                f"defs_state: {_AT_LOAD.value} forgets the topics that are gone. Next: write "
                f"management_type: {_IN_STORAGE.value}"
            )
        self._known: Mapping[str, str] = {}
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
        """Wire the streams by what is known of their topics."""
        self._known = _read(state_path) if state_path else {}
        return self.definitions(folder_of(context))

    def write_state_to_path(self, state_path: Path) -> None:
        """Find topics and columns as `oncelake discover` does; what was known stays.

        Raises:
            DependencyError: Kafka or the schema registry does not answer; the state stays.
        """
        from oncelake.ingestion.operations.discover import discover

        self._known = self._read_last(state_path)
        lake = super()._lake_resource(self._base)
        settings = load_settings(**lake.given(), **KafkaResource(**self.kafka).given())
        with TemporaryDirectory() as place:
            folder = write_files(self._files(settings.streams), Path(place))
            for outline in outlines_in(folder):
                try:
                    found = discover(outline, settings)
                    found.write()
                except InvalidSpecError as error:
                    # Its asset is there, and says so; the other files' topics are known.
                    dg.get_dagster_logger().warning(str(error))
                    continue
                for topic, why in found.unknown.items():
                    dg.get_dagster_logger().warning(f"{topic}: no columns are known: {why}")
            state = {each.name: each.read_text("utf-8") for each in folder.glob(f"*{SUFFIX}")}
        partial = state_path.with_name(f"{state_path.name}.partial")
        partial.write_text(json.dumps(state, indent=2, sort_keys=True), "utf-8")
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
            **{name: text.encode() for name, text in self._known.items() if name in beside},
            KEPT_BY: command.encode(),
        }

    def _read_last(self, state_path: Path) -> dict[str, str]:
        """Return the state that a new one starts from."""
        storage, key = DefsStateStorage.get(), self.defs_state_config.key
        info = storage.get_latest_defs_state_info() if storage else None
        last = info.info_mapping.get(key) if info else None
        if storage and last and last.management_type is _IN_STORAGE and not state_path.exists():
            storage.download_state_to_path(key, last.version, state_path)
        return _read(state_path) if state_path.exists() else {}


def _read(state: Path) -> dict[str, Any]:
    known = json.loads(state.read_text("utf-8"))
    assert isinstance(known, dict), f"{state} is no state of Streams"
    return known


def _content(file: Path) -> bytes:
    """Return what is in a file; nothing of what is none, so that its stream is a broken one."""
    with suppress(OSError):
        if file.resolve().is_relative_to(file.parent.resolve()):
            return file.read_bytes()
    return b""

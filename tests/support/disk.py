"""A broker whose disk can be kept as it is, and put back later, as an operator may do it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from oncelake.ingestion.local import broker
from tests.support.world import JARS


@dataclass(kw_only=True)
class BrokerOnDisk:
    """One broker, its folder, and the copy that was made of its disk."""

    folder: Path

    @property
    def copy(self) -> Path:
        """Where the copy lies."""
        return self.folder.with_name(f"{self.folder.name}-copy")

    def start(self) -> str:
        """Start it, at the same address and with its records, and return the address."""
        return broker.up(self.folder, jars=JARS, tied_to_caller=True).address

    def restart(self) -> None:
        """Stop it as an operator does, and start it again: nothing is lost."""
        broker.down(self.folder)
        self.start()

    def keep(self) -> None:
        """Copy its disk while it is stopped."""
        broker.down(self.folder)
        shutil.copytree(self.folder / "data", self.copy)
        self.start()

    def put_back(self) -> None:
        """Put the copy in the place of the disk."""
        broker.down(self.folder)
        shutil.rmtree(self.folder / "data")
        shutil.copytree(self.copy, self.folder / "data")
        self.start()

    def remove(self) -> None:
        """Stop it for good."""
        broker.down(self.folder)
        for each in (self.folder, self.copy):
            shutil.rmtree(each, ignore_errors=True)

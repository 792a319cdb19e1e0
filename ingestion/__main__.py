"""``python -m ingestion`` is ``oncelake``."""

from __future__ import annotations

from oncelake.ingestion.cli.app import main

if __name__ == "__main__":
    main()

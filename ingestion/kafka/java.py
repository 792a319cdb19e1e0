"""The Java that runs every JVM started from here."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ingestion.errors import SetupError


def find_java() -> str:
    """Return the ``java`` of ``JAVA_HOME`` if that is set, else the one on the ``PATH``.

    Raises:
        SetupError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        where = f"JAVA_HOME ({home})" if home else "the PATH"
        raise SetupError(f"no java in {where}. Next: install a JDK, version 17 or 21")
    return java

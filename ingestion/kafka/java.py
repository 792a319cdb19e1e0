"""The Java that runs every JVM started from here, and PySpark, which ships jars for them."""

from __future__ import annotations

import os
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from oncelake.ingestion.errors import SetupError

_CAUSE: Final = re.compile(r"^Caused by: (.*)$", re.MULTILINE)


def find_java() -> str:
    """Return the ``java`` of ``JAVA_HOME`` if that is set, else the one on the ``PATH``.

    Raises:
        SetupError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        where = f"JAVA_HOME ({home})" if home else "the PATH"
        raise SetupError(f"no java in {where}. Next: install a JDK, version 17, 21 or 25")
    return java


def pyspark_home() -> Path:
    """Return the folder of PySpark, which has jars of its own, without importing it.

    Raises:
        SetupError: it is not installed.
    """
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise SetupError("PySpark, which includes Ivy, is not installed. Next: pip install pyspark")
    return Path(pyspark.origin).resolve().parent


def first_cause(trace: str) -> str:
    """Return what a stack trace ends with, the first thing that went wrong; empty without one."""
    return next(iter(reversed(_CAUSE.findall(trace))), "")

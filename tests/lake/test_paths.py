"""Where a stream's tables lie, and what its lock promises there."""

from __future__ import annotations

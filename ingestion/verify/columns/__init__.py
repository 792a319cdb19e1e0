"""The proof in columns: whole batches decoded, folded and compared at once.

It proves what is plain, and never has the last word on anything else. A record that it might read
otherwise than the rule says is doubtful, and ``verify.decode`` reads it alone. Where a count or a
row differs from what was found, or a stream has what no query here states, ``NotInColumnsError`` is
raised, and the fold record by record (``verify.fold``) decides everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from oncelake.ingestion.verify.verdict import Difference


class NotInColumnsError(Exception):
    """A stream, or what was found in it, needs the proof record by record; the message says why.

    Attributes:
        differences: What differs from an earlier proof.
    """

    def __init__(self, why: str, differences: Sequence[Difference] = ()) -> None:
        super().__init__(why)
        self.differences = differences

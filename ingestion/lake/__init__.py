"""The state of a stream: ledger, quarantine, tombstones, archive, lock."""

"""What is remembered of a stream: ledger, quarantine, tombstones, archive, lock."""

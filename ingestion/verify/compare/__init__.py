"""The tables against the fold: rows, tombstones, quarantine, ledger."""

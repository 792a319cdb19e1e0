"""What lies on disk: tables, their logs, commit metadata, the ledger, quarantine and locks."""

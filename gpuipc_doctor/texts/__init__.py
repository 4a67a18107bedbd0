"""Find signatures in texts of any length: logs, stacks, messages of a failed probe."""

"""Find the known issues in logs and stacks."""

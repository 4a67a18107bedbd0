"""Surveys of drivers, libraries and programs. They run in workers, because their queries may hang or
crash."""

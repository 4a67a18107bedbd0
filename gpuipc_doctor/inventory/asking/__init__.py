"""Surveys of drivers, libraries and programs, in workers because a query may hang or crash."""

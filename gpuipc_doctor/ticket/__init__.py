"""Tickets for vendors: the fields of a bug report, filled from documents of this tool."""

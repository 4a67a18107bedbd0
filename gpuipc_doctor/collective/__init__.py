"""Collectives of a job, from whatever reports them, and who keeps the others waiting."""

"""Collectives: what checks let ranks call, and who kept others waiting in a job."""

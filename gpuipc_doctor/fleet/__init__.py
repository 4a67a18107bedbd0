"""Run checks on many nodes: which are bad, which differ, which did not answer."""

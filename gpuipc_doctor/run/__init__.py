"""From a request to a report: discover, plan, run the probes, and keep their results."""

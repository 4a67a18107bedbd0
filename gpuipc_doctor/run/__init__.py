"""From a request to a report: find out what is here, plan, run the probes, keep what each means."""

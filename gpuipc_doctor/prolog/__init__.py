"""In front of every job: the prolog tier, one line, one exit code, and never a second too late.

A non-zero exit drains a node, so everything here leans the other way: what cannot be told is told and lets
the job start, unless the site has decided otherwise. What may hang (the config's file system, the driver, the
log) runs in a child of the `guard`, which itself does nothing that can.
"""

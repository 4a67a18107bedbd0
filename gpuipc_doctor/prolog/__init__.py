"""The test before every job: the prolog tier, one line, one exit code, within the budget.

A non-zero exit drains the node, so in doubt the job starts and the line says why, unless the site's policy
differs. Operations that may hang (reading the config, the driver, the log) run in a child of the `guard`,
never in the guard itself.
"""

"""A running job, examined from outside: which rank waits for which, and what grows. Nothing is stopped."""

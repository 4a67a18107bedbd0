"""Examine a running job from outside, without stopping it: which rank waits for which, and what grows."""

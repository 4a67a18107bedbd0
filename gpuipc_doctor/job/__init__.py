"""Examine a running job from outside, without stopping it: which ranks wait, and which resources grow."""

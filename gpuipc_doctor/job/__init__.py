"""Examine a running job from outside, without stopping it: which ranks wait for which, and which resources
grow."""

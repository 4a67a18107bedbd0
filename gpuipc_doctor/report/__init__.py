"""A run's results as text, for people, programs and scripts. Pure functions without I/O."""

"""What a run learned, as text: for people, for programs, for scripts. Pure functions, no I/O."""

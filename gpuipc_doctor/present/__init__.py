"""Presentation: `blocks` are content without layout; each other module renders one format. No I/O."""

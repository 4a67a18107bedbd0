"""One way to present: `blocks` are data without layout; each other module draws one format. No I/O."""

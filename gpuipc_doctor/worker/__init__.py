"""All that loads a driver, an MPI or a collectives' library. Only worker processes import it."""

"""Where a chain lives: in files of a job directory, or on Redis."""

"""What a person runs: one file per job."""

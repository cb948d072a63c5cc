"""One module per phase: ``plan(spec, have)``, and a deploy of its name: each runs alone."""

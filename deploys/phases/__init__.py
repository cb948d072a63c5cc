"""One module per phase: ``plan(spec, have)``, and a deploy of the module's name so that it runs alone."""

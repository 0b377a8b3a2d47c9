"""Templates in manifests, in a sandbox, and the times that they and answers spell."""

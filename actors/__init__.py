"""Ray: stage actors, their pools and the supervisor. The only importer of ray."""

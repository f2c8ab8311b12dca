"""Several machines as one: queue, leases and results in Postgres. Imported only where a fleet is used."""

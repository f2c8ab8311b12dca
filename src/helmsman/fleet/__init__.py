"""Several machines as one: a queue, leases and results in Postgres, on DBOS. Imported only where a fleet is used."""

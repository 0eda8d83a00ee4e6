"""Tables that stay healthy: a policy becomes a plan, a plan becomes work, and Dagster decides when."""

"""Maintenance of tables: a policy becomes a plan, the plan is what is executed, and Dagster decides when."""

"""Tables that others write, as external assets: they are looked at, never changed."""

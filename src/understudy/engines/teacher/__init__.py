"""The private teacher: a classifier that is trained beside a generator and names what it draws."""

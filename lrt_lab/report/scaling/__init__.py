"""The report of a scaling law: read a table, fit, cross, draw, write."""

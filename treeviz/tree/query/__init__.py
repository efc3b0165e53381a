"""The search language: parse a query, and find its rows."""

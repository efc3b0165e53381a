"""HTML: fragments, pages and the front end."""

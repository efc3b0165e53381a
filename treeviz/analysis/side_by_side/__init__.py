"""Other trees in the rows of one."""

"""What is wrong with a tree, or may be: rules, each a function of the table."""

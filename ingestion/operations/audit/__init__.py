"""``oncelake audit``: the records of a topic, and the rows that another tool has made of them."""

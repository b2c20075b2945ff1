"""What verbs print: headline, tables, small print and JSON of each kind of answer."""

"""The ways of sharing cards, one file each: a plan in the words that its device plugin and scheduler understand."""

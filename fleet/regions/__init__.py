"""The byte layouts of regions that interception libraries share with us."""

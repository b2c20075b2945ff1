"""The nine kinds of advice, one file each: whom it is for, and whom it is refused."""

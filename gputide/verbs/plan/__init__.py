"""`gputide plan`: makes, explains, compares and approves plans."""

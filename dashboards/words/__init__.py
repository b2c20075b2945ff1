"""What pages, reports and messages say, in English and Chinese."""

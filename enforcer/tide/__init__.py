"""The tide: at night services step back and whole machines take other work; by morning everything is given back."""

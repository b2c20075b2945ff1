"""The tide: at night services scale in and whole machines take other work; by morning everything is given back."""

"""Readings as text for a scraper."""

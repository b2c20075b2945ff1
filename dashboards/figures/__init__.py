"""Figures of pages and reports, as Plotly JSON."""

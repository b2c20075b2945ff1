"""Keeps windows and inventory as dated Parquet, and reads them back."""

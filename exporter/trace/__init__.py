"""The neutral trace format: a recorded or synthetic fleet as a folder of Parquet files."""

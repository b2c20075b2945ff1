"""The pages of the web app: one file or family of files per page."""

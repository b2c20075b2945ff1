"""Who may see and do what in the web app: people and their rights, how they are known, and what they are shown."""

"""The JSON API `/api/v1`: what the pages show and do, for programs; described by its own OpenAPI document."""

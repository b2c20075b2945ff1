"""Pods as they arrive: where each goes so that whole cards stay free, and which cards to cordon."""

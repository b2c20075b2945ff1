"""A plan's changes as files, for people who change clusters by their own means: kubectl, Kustomize, Helm, Git."""

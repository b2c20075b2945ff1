//go:build tools

package main

// Helm is built from this module too (helm.sh/helm/v3/cmd/helm); without this its dependencies would leave go.mod.
import _ "helm.sh/helm/v3/pkg/action"

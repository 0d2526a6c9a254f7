//go:build tools

// Package tools pins what Argo CD renders a folder with, in the version that comes with it.
package tools

import _ "sigs.k8s.io/kustomize/kustomize/v5"

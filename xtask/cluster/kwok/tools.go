//go:build tools

// Package tools pins what the test cluster is built from.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"

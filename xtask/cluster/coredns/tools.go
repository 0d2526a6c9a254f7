//go:build tools

// Package tools pins what the test cluster is built from.
package tools

import _ "github.com/coredns/coredns"

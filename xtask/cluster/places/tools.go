//go:build tools

// Package tools pins the servers that models are fetched from in the tests.
package tools

import (
	_ "github.com/distribution/distribution/v3/cmd/registry"
	_ "github.com/versity/versitygw/cmd/versitygw"
)

//go:build tools

// Package tools pins Argo CD: one program, which acts by its name.
package tools

import _ "github.com/argoproj/argo-cd/v3/cmd"

//go:build tools

// Package tools pins the program that judges what a chart renders.
package tools

import _ "github.com/zegl/kube-score/cmd/kube-score"

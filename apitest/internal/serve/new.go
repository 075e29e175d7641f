// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"maps"

	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// New returns a server without objects.
func New(opts Options) *Server {
	all, stable := rules.Builtin()
	s := &Server{Options: opts, Minor: minorOf(opts.Version), Store: store.New(opts.History, opts.Seed), builtin: all, own: rules.NewCatalog(), served: maps.Clone(stable), advised: map[string]bool{}}
	s.Store.Observe = s.observe
	return s
}

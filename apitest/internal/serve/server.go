// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubewright/kubewright/apitest/internal/authz"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/rules"
	"github.com/kubewright/kubewright/apitest/internal/store"
)

// Server answers requests. It knows the identity of a client, but neither the transport,
// nor faults.
type Server struct {
	Options
	Minor   int // of Options.Version
	Journal request.Journal
	Store   *store.Store
	watches watchRules

	builtin *rules.Catalog // the kinds that every server has

	mu       sync.Mutex
	own      *rules.Catalog // kinds of this server, by Register or a definition
	allows   Authorizer
	served   map[schema.GroupVersion]bool
	gates    map[string]bool
	uids     uint64          // UIDs given out
	suffixes uint64          // generated names given out
	advised  map[string]bool // namespaces that do not exist, and that a warning has named
}

// Options are those of apitest.Options that requests depend on.
type Options struct {
	Version       string
	ManagedFields bool
	History       int
	Seed          uint64
	Schemas       rules.Compiler
}

// Authorizer decides whether a request is allowed. The reason of a refusal is part of the
// message of the 403.
type Authorizer func(*request.Request) (allowed bool, reason string)

// Node returns the rules for the identities of nodes.
func (s *Server) Node() authz.Node { return authz.Node{Store: s.Store, Minor: s.Minor} }

// Authorize replaces the authorizer. Nil applies the Node authorizer to nodes, and allows
// all other requests.
func (s *Server) Authorize(a Authorizer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allows = a
}

// Serve starts or stops serving a group version.
func (s *Server) Serve(gv schema.GroupVersion, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served[gv] = on
}

func (s *Server) serves(gv schema.GroupVersion) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served[gv]
}

func (s *Server) gate(g string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on, ok := s.gates[g]; ok {
		return on
	}
	since, ok := onSince[g]
	return ok && s.Minor >= since
}

// SetGate turns a gate on or off.
func (s *Server) SetGate(g string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gates == nil {
		s.gates = map[string]bool{}
	}
	s.gates[g] = on
}

// onSince is the minor version from which a gate is on by default; the others
// are off in all versions. NodeDeclaredFeatures is off in 1.35, but that version
// keeps the field nevertheless when the status is written.
var onSince = map[string]int{
	"WatchList": 34, "NodeDeclaredFeatures": 35,
	"DRADeviceTaints": 36, "DRAPartitionableDevices": 36, "DRADeviceBindingConditions": 36, "DRAConsumableCapacity": 36,
}

// minorOf returns the minor version of a version such as v1.37.2, or 0.
func minorOf(version string) int {
	_, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, _ := strconv.Atoi(minor)
	return n
}

// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubewright/kubewright/apitest/internal/fault"
	"github.com/kubewright/kubewright/apitest/internal/request"
	"github.com/kubewright/kubewright/apitest/internal/serve"
)

// Options configures a Server. The zero value is a server of version v1.37.2
// that serves the stable APIs, applies NodeRules to node identities and allows all
// other requests.
type Options struct {
	// Version is the gitVersion in /version. Feature gates, limits, field
	// selectors and messages follow its minor version, from v1.34 on. Empty
	// means v1.37.2.
	Version string
	// Kinds are served in addition to those of client-go's scheme. See
	// Server.Register.
	Kinds []Kind
	// Namespaces exist from the start, in addition to default, kube-system,
	// kube-public and kube-node-lease.
	Namespaces []string
	// Serve and Refuse change which group versions are served. By default
	// these are the stable ones. See Server.Serve.
	Serve, Refuse []schema.GroupVersion
	// Gates turns feature gates of the API on or off. A gate that is off
	// drops its fields on write, as the real server does. Gates that are not
	// named have the default of Version.
	Gates map[Gate]bool
	// Authorizer decides which requests are allowed. Nil means NodeRules for
	// node identities, and that all other requests are allowed.
	Authorizer Authorizer
	// ManagedFields makes metadata.managedFields exact for every write of a client.
	// Otherwise they only list the managers before the first server-side apply to an
	// object, and are exact after it. Exact ones make a write several times slower.
	ManagedFields bool
	// History is the minimal number of changes of each kind that are kept, so that a
	// watch can start before them. A watch from an older resourceVersion is answered with
	// 410. 0 means 4096.
	History int
	// Seed selects the UIDs, the suffixes of generated names and the first resourceVersion.
	// They are the same in every run with the same Seed. A test that must not depend on
	// them, or on the order of generated names, can run with several. 0 is a seed, too.
	Seed uint64
	// Schemas compiles the schemas of a CustomResourceDefinition by version, or returns
	// the errors of an invalid definition, whose write is answered with 422. Use
	// crdschema.Compile of the separate module apitest/crdschema, which runs the code of
	// the real server. Nil means that custom resources have no schemas, and that nothing
	// is pruned, defaulted or validated. The server holds its locks while it calls
	// Schemas, one call at a time, so Schemas must not block and must not use the server. It
	// may keep its argument.
	Schemas func(definition *unstructured.Unstructured) (map[string]Schema, field.ErrorList)
}

// Server is an API server in memory. It starts no goroutines: the goroutine of the
// client serves its requests, and a watch waits in the Read of its response body. A
// Server may be used concurrently. In a synctest bubble, use a Server that was
// made in that bubble.
type Server struct {
	core   *serve.Server
	faults fault.List
}

// Authorizer decides whether a request is allowed. The reason of a refusal is
// part of the message of the 403. Authorize is called without locks, from the
// goroutines of the clients, for several requests at the same time.
type Authorizer interface {
	Authorize(s *Server, r Request) (allowed bool, reason string)
}

// AuthorizerFunc is a function that implements Authorizer.
type AuthorizerFunc func(s *Server, r Request) (bool, string)

// Authorize implements Authorizer.
func (f AuthorizerFunc) Authorize(s *Server, r Request) (bool, string) { return f(s, r) }

// Kind describes a kind that client-go's scheme does not have, for
// Server.Register and Options.Kinds. Its objects are served without schema
// validation, defaults or conversion, in JSON only. See Options.Schemas for kinds of
// CustomResourceDefinitions.
type Kind struct {
	// GroupVersionKind is required.
	schema.GroupVersionKind
	// Resource is the plural name in paths. Empty means the name that
	// apimachinery guesses: Widget becomes widgets, Policy policies.
	Resource string
	// ClusterScoped is set for a kind without namespaces.
	ClusterScoped bool
	// NoStatus is set for a kind without the status subresource. By default a
	// write of the object leaves status alone, and a write of /status leaves
	// everything else alone.
	NoStatus bool
	// Type is an object of the kind's Go type, so that Put, Get, List, Edit and
	// Delete take the type. If it is nil, these functions take none; Put takes
	// an *unstructured.Unstructured in any case.
	Type runtime.Object
}

// Serve starts or stops serving a group version, as a restart of an API server
// with another --runtime-config would. Objects are kept.
func (s *Server) Serve(gv schema.GroupVersion, on bool) { s.core.Serve(gv, on) }

// Authorize replaces the authorizer. Nil means the default of Options.Authorizer.
func (s *Server) Authorize(a Authorizer) {
	if a == nil {
		s.core.Authorize(nil)
		return
	}
	s.core.Authorize(func(r *request.Request) (bool, string) { return a.Authorize(s, outer(r)) })
}

// Gate is a feature gate of the API server.
type Gate string

// The gates that can be set. All other gates have the defaults of the version.
const (
	// CoordinatedLeaderElection keeps spec.strategy and spec.preferredHolder
	// of a Lease.
	CoordinatedLeaderElection Gate = "CoordinatedLeaderElection"

	// WatchList serves watches that begin with the list of objects
	// (sendInitialEvents). If it is off, they are answered with 422.
	WatchList Gate = "WatchList"

	// NodeDeclaredFeatures keeps status.declaredFeatures of a Node.
	NodeDeclaredFeatures Gate = "NodeDeclaredFeatures"

	// These keep fields of ResourceSlices.
	DRADeviceTaints              Gate = "DRADeviceTaints"
	DRAPartitionableDevices      Gate = "DRAPartitionableDevices"
	DRADeviceBindingConditions   Gate = "DRADeviceBindingConditions"
	DRAConsumableCapacity        Gate = "DRAConsumableCapacity"
	DRADeviceCompatibilityGroups Gate = "DRADeviceCompatibilityGroups"
	DRANodeAllocatableResources  Gate = "DRANodeAllocatableResources"
	DRAListTypeAttributes        Gate = "DRAListTypeAttributes"
	DRAPartitionableDevicesType  Gate = "DRAPartitionableDevicesType"
	DRAOptionalNodeOperations    Gate = "DRAOptionalNodeOperations"
)

// SetGate turns a gate on or off. Stored objects keep their fields.
func (s *Server) SetGate(g Gate, on bool) { s.core.SetGate(string(g), on) }

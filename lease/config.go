// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"fmt"
	"math"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/internal/enum"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/lease/internal/plan"
)

// The defaults of Config.
const (
	// DefaultDuration is the kubelet's nodeLeaseDurationSeconds (KEP-589).
	DefaultDuration = 40 * time.Second
	// DefaultCallTimeout is the longest default deadline of one API call. With
	// it, and DefaultDuration, a request that hangs leaves time for a second
	// and a third one before kube-controller-manager loses patience, 50 s after
	// the last renewal.
	DefaultCallTimeout = 10 * time.Second
	// DefaultShutdownTimeout is the time for what OnShutdown asks for.
	DefaultShutdownTimeout = 5 * time.Second
	// DefaultWorkers is the number of nodes that are visited at once. By Little's law
	// it is enough for 1,000 renewals a second that take 40 ms on average. It
	// keeps a process below a hundred goroutines (net/http has one for each
	// request) when all of them wait for an API server that does not answer,
	// and below the 100 streams that it allows on one HTTP/2 connection.
	DefaultWorkers = 40
	// DefaultName is the name of the controller in logs and health checks.
	DefaultName = "lease"
)

// An OwnerFunc returns the reference to the Node that owns the lease of
// nodeName. The garbage collector deletes the lease with that Node, and the
// controller renews it only while the Node exists:
//
//   - An error for which [k8s.io/apimachinery/pkg/api/errors.IsNotFound] is
//     true says that the Node does not exist. Nothing is read or written until
//     that changes.
//   - After any other error a lease that exists is renewed with the owner it
//     has, and none is created.
//   - A reference without UID says that the lease has no owner; see [NoOwner].
//
// It is called after the gate was found open, within the time that [GateFunc] has, for
// different nodes at the same time. It must answer from memory, and return when ctx is
// done.
type OwnerFunc func(ctx context.Context, nodeName string) (metav1.OwnerReference, error)

// NoOwner is an [OwnerFunc] for leases without an owner. Only [ShutdownDelete] and an
// administrator delete such a lease: each node that is gone for good leaves one
// behind. A lease that has an owner keeps it.
func NoOwner(context.Context, string) (metav1.OwnerReference, error) {
	return metav1.OwnerReference{}, nil
}

// A NodeGetter finds a Node by name. The NodeLister of client-go is one.
type NodeGetter interface {
	// Get returns the Node, or an error for which
	// [k8s.io/apimachinery/pkg/api/errors.IsNotFound] is true.
	Get(name string) (*corev1.Node, error)
}

// NodeOwner returns an [OwnerFunc] that looks Nodes up, for example in the
// cache of an informer. Call [Controller.Trigger] from the informer's handlers,
// so that the controller notices a Node that comes, goes or is replaced at
// once and not at the next renewal. The cache must be synced before Run: a Node
// that is not there is taken for deleted.
func NodeOwner(nodes NodeGetter) OwnerFunc {
	return func(_ context.Context, nodeName string) (metav1.OwnerReference, error) {
		node, err := nodes.Get(nodeName)
		if err != nil {
			return metav1.OwnerReference{}, err
		}
		return metav1.OwnerReference{
			APIVersion: plan.NodeAPIVersion,
			Kind:       plan.NodeKind,
			Name:       node.Name,
			UID:        node.UID,
		}, nil
	}
}

// A GateFunc says whether the lease of nodeName may be renewed: nil for yes. An
// error that lasts makes the node Unknown within its grace period, so it is
// for a node that can't be trusted to report its own state; one that knows
// that it is not healthy should report Ready=False instead and go on renewing.
//
// It is called before each renewal, for different nodes at the same time. It must answer
// from memory, and return when ctx is done, a quarter of RenewInterval after the call.
// The controller goes on with other nodes after 50 ms. Until the answer comes nothing is
// sent for this node. No answer by the deadline closes the gate and is reported, and so
// does a panic. While a call has not returned the gate is not called again for that node.
type GateFunc func(ctx context.Context, nodeName string) error

// Config configures a Controller. The zero value of every optional field means
// the default that its comment states.
type Config struct {
	// Required. Client reads and writes Leases in the namespace
	// kube-node-lease. clientset.CoordinationV1() is one. It should have a
	// connection of its own, for ResetConnections, and its rate limit must
	// be off (QPS -1) or leave room for one request per node and RenewInterval:
	// the default of client-go, 5 a second, is used up by 50 nodes. Then
	// [Hooks.Overloaded] is called.
	Client coordinationv1client.LeasesGetter
	// Required, unless Fleet is set. NodeName is the name of the Node that is
	// managed from the start.
	NodeName string
	// Required. Owner returns the Node that owns a lease. It has no default
	// because a lease without an owner is never garbage collected: set [NoOwner]
	// if that is intended. With a Node informer use [NodeOwner]; with
	// package nodestatus its method OwnerReference.
	Owner OwnerFunc

	// Fleet lets NodeName be empty: nodes come and go with [Controller.Add] and
	// [Controller.Remove], and there may be none at all. Without it an empty
	// NodeName, such as that of an unset environment variable, is refused.
	// Default: false.
	Fleet bool
	// Gate says whether a node may renew its lease. Default: always.
	Gate GateFunc
	// HolderIdentity is written to the leases. A lease that is found with another
	// one is held by another process. Default: the name of the node, as the
	// kubelet does, and as some of Kubernetes' tests expect.
	HolderIdentity string
	// Process distinguishes processes that serve the same nodes under the same
	// HolderIdentity. It is written to an annotation of the leases. A lease that
	// is found with another one is held by another process; a lease with the
	// same one is that of this process before a restart, and is taken at once. So
	// it must stay the same over a restart, and no two processes that run at
	// the same time may have it in common. A Pod of a Deployment has another host
	// name than its predecessor, and waits until the lease of that has expired,
	// unless OnShutdown is ShutdownExpire. At most 128 characters. Default: the
	// name of the host.
	Process string
	// Duration is written to the leases: the time after a renewal at which another
	// process may consider them expired. Whole seconds. A lease found with another
	// duration is corrected. kube-controller-manager ignores it, but has a grace
	// period of its own: if that is shorter set Duration to it, because
	// [Hooks.Recovered] goes by Duration. Default: DefaultDuration.
	Duration time.Duration
	// RenewInterval is the time between two renewals of a lease. At most half
	// of Duration, and well below the grace period of kube-controller-manager
	// (--node-monitor-grace-period, 50 s by default). Default: a quarter of
	// Duration.
	RenewInterval time.Duration
	// OnShutdown says what becomes of the leases that are held when Run ends,
	// and of that of a node when it is removed. Default: ShutdownLeave.
	OnShutdown ShutdownPolicy
	// ResetConnections, if set, is called when two calls in a row had no byte of an
	// answer within CallTimeout, and at most once a minute. It should close the
	// connections of Client, so that the next call makes a new one: a
	// connection whose other end has vanished is otherwise noticed after 45 s
	// only (HTTP/2 idle time 30 s, ping timeout 15 s). CloseAll of a dialer of
	// k8s.io/client-go/util/connrotation does that; CloseIdleConnections of a
	// transport does not reliably, since other calls hold the connection. It is
	// called from a worker and must not block. An API server that throttles (429)
	// answers; but a transport of another kind than net/http's must call
	// GotFirstResponseByte of net/http/httptrace, or throttling counts as silence.
	// Default: nothing.
	ResetConnections func()

	// CallTimeout is the deadline of one API call, its retries inside client-go
	// included. At most Duration. Default: a quarter of Duration, but at least
	// a second and at most DefaultCallTimeout.
	CallTimeout time.Duration
	// ShutdownTimeout bounds what OnShutdown asks for when Run ends. Default:
	// DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// Workers is the largest number of nodes that are visited, and so of requests
	// under way, at once. A fleet far away from its API server needs more (kwok has
	// --node-lease-parallelism for it): nodes, divided by RenewInterval, times the
	// latency. [Hooks.Overloaded] is called with these numbers if they don't fit.
	// Default: DefaultWorkers.
	Workers int

	// Name is the name in logs and health checks. Default: DefaultName.
	Name string
	// ErrorHandler is called with errors that the controller recovers from: with the
	// first of each class while nodes fail with it. [Hooks.Failed] is called for
	// every one. Panics in functions of Config are errors with a method Stack() []byte,
	// which errors.As finds. It is called synchronously and must not block. Default: the
	// logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// EventRecorder records the events listed in docs/operations.md.
	// Default: none.
	EventRecorder events.EventRecorder
	// Hooks are called on events. Default: none.
	Hooks Hooks
}

// A ShutdownPolicy says what becomes of a lease that is no longer renewed.
type ShutdownPolicy int

const (
	// ShutdownLeave leaves it as it is. A restart within Duration goes
	// unnoticed, and the garbage collector deletes it with the Node.
	ShutdownLeave ShutdownPolicy = iota
	// ShutdownDelete deletes it.
	ShutdownDelete
	// ShutdownExpire writes it once more, without holder and with a duration of
	// one second, so that a process that waits for it to expire need not wait. The renew
	// time stays: a new one would report the node as alive.
	ShutdownExpire
)

// String returns the name of the policy.
func (p ShutdownPolicy) String() string {
	return enum.Name(p, "Leave", "Delete", "Expire")
}

// The limits of Config.
const (
	minDuration      = time.Second
	maxDuration      = math.MaxInt32 * time.Second // of the API
	minRenewInterval = 100 * time.Millisecond
	minCallTimeout   = time.Millisecond
)

// complete fills in the defaults and returns all that is wrong.
func (cfg *Config) complete() error {
	var problems field.ErrorList
	at := func(name string) *field.Path { return field.NewPath(name) }
	if lifecycle.IsNil(cfg.Client) {
		problems = append(problems, field.Required(at("Client"), "for example clientset.CoordinationV1()"))
	}
	problems = append(problems, lifecycle.CheckFirstNode("NodeName", cfg.NodeName, "Fleet", cfg.Fleet)...)
	if cfg.Owner == nil {
		problems = append(problems, field.Required(at("Owner"), "or lease.NoOwner for leases that are never garbage collected"))
	}
	problems = append(problems, cfg.completeProcess()...)
	problems = append(problems, cfg.completeTimes()...)
	problems = append(problems, lifecycle.DefaultInt("Workers", &cfg.Workers, DefaultWorkers, 1)...)
	problems = append(problems, enum.Check("OnShutdown", cfg.OnShutdown, ShutdownExpire)...)
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	return lifecycle.InvalidConfig("lease", problems)
}

// maxProcess is the greatest length of Config.Process: each renewal carries it.
const maxProcess = 128

func (cfg *Config) completeProcess() field.ErrorList {
	at := field.NewPath("Process")
	if cfg.Process == "" {
		host, err := os.Hostname()
		if err != nil || host == "" {
			return field.ErrorList{field.Required(at, fmt.Sprintf("the name of the host, its default, is not known: %v", err))}
		}
		cfg.Process = host[:min(len(host), maxProcess)]
	}
	if len(cfg.Process) > maxProcess {
		return field.ErrorList{field.TooLong(at, cfg.Process, maxProcess)}
	}
	return nil
}

func (cfg *Config) completeTimes() (problems field.ErrorList) {
	duration := lifecycle.DefaultDuration("Duration", &cfg.Duration, DefaultDuration, minDuration)
	if len(duration) == 0 && cfg.Duration%time.Second != 0 {
		duration = append(duration, field.Invalid(field.NewPath("Duration"), cfg.Duration.String(), "must be whole seconds: the API has no others"))
	}
	if cfg.Duration > maxDuration {
		duration = append(duration, field.Invalid(field.NewPath("Duration"), cfg.Duration.String(), "must be at most "+maxDuration.String()))
	}
	problems = append(problems, duration...)
	problems = append(problems, lifecycle.DefaultDuration("ShutdownTimeout", &cfg.ShutdownTimeout, DefaultShutdownTimeout, minCallTimeout)...)
	// The rest depends on Duration: with a wrong one the defaults of fields that
	// are not set would be reported as wrong.
	base := cfg.Duration
	if len(duration) > 0 {
		base = DefaultDuration
	}
	problems = append(problems, lifecycle.DefaultDuration("RenewInterval", &cfg.RenewInterval, base/4, minRenewInterval)...)
	problems = append(problems, lifecycle.DefaultDuration("CallTimeout", &cfg.CallTimeout, min(max(base/4, time.Second), DefaultCallTimeout), minCallTimeout)...)
	if len(duration) > 0 {
		return problems
	}
	if cfg.RenewInterval > cfg.Duration/2 {
		problems = append(problems, field.Invalid(field.NewPath("RenewInterval"), cfg.RenewInterval.String(), fmt.Sprintf("must be at most half of Duration, %v: one late renewal must not let the lease expire", cfg.Duration)))
	}
	// A duration of one second has the default of one second.
	if cfg.CallTimeout > max(cfg.Duration, time.Second) {
		problems = append(problems, field.Invalid(field.NewPath("CallTimeout"), cfg.CallTimeout.String(), fmt.Sprintf("must be at most Duration, %v", cfg.Duration)))
	}
	return problems
}

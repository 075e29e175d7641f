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
	"github.com/kubewright/kubewright/internal/nodename"
	"github.com/kubewright/kubewright/lease/internal/plan"
)

// The defaults of Config.
const (
	// DefaultDuration is the kubelet's nodeLeaseDurationSeconds (KEP-589).
	DefaultDuration = 40 * time.Second
	// DefaultCallTimeout is the longest default deadline of one API call. With
	// it, and DefaultDuration, a request that hangs leaves time for a second and a
	// third one before kube-controller-manager makes the node Unknown, 50 s after the
	// last renewal.
	DefaultCallTimeout = 10 * time.Second
	// DefaultShutdownTimeout is the time for what OnShutdown asks for.
	DefaultShutdownTimeout = 5 * time.Second
	// DefaultWorkers is the number of nodes that are visited at once. It is enough
	// for 1,000 renewals a second that take 40 ms on average. If the API server does
	// not answer, all workers wait, each with one more goroutine of net/http. Even
	// then the process has less than a hundred goroutines for them, and it uses less
	// than the 100 streams that an API server allows on one HTTP/2 connection.
	DefaultWorkers = 40
	// DefaultName is the name of the controller in logs and health checks.
	DefaultName = "lease"
)

// An OwnerFunc returns the reference to the Node that owns the lease of
// nodeName. The garbage collector deletes the lease with that Node, and the
// controller renews it only while the Node exists:
//
//   - An error for which [k8s.io/apimachinery/pkg/api/errors.IsNotFound] is
//     true means that the Node does not exist. The lease is not read or written
//     until the Node exists.
//   - After any other error, an existing lease is renewed and keeps its owner. A
//     missing lease is not created.
//   - A reference without UID means that the lease has no owner; see [NoOwner].
//
// It is called after the gate has returned nil, for different nodes at the same time. It
// must answer from memory, and return when ctx is done. It has the time that the gate has
// left; see [GateFunc].
type OwnerFunc func(ctx context.Context, nodeName string) (metav1.OwnerReference, error)

// NoOwner is an [OwnerFunc] for leases without an owner. Such a lease is deleted only by
// [ShutdownDelete] or by an administrator, so a node that never comes back leaves its
// lease behind. A lease that already has an owner keeps it.
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
// so that the controller notices at once when a Node is created, deleted or
// replaced. Otherwise it notices at the next renewal. The cache must be synced before
// Run, because a Node that is not in the cache counts as deleted.
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

// A GateFunc returns nil if the lease of nodeName may be renewed. If it returns an error
// for longer than the grace period, the node becomes Unknown. So the error is for a node
// that can't be trusted to report its own state. A node that knows that it is not healthy
// should report Ready=False and continue to renew its lease.
//
// It is called before each renewal, for different nodes at the same time. It must answer
// from memory, and return when ctx is done, which is a quarter of RenewInterval after the
// call. A call that is late or panics closes the gate and is reported: see "Functions of a
// program" in docs/operations.md.
type GateFunc func(ctx context.Context, nodeName string) error

// Config configures a Controller. The zero value of every optional field means
// the default that its comment states.
type Config struct {
	// Required. Client reads and writes Leases in the namespace
	// kube-node-lease. clientset.CoordinationV1() is one. It should have a separate
	// connection, for ResetConnections. Its rate limit must be off (QPS -1) or
	// allow one request per node and RenewInterval. The default of client-go, 5
	// requests a second, is enough for 50 nodes only. With more nodes
	// [Hooks.Overloaded] is called.
	Client coordinationv1client.LeasesGetter
	// Required, unless Fleet is set. NodeName is the name of the Node that is
	// managed from the start.
	NodeName string
	// Required, unless the lease follows Nodes: see [Controller.Follow], which
	// nodestatus.New calls for nodestatus.Config.Lease. Owner returns the Node that owns a
	// lease. It has no default because a lease without an owner is never garbage collected:
	// set [NoOwner] if that is intended. With a Node informer use [NodeOwner]. New accepts
	// a Config without it, and Run returns [ErrNoOwner] if nothing was followed by then.
	Owner OwnerFunc

	// Fleet lets NodeName be empty. [Controller.Add] and [Controller.Remove] add
	// and remove nodes, and there may be none. Without Fleet, New rejects an empty
	// NodeName, because it may come from an environment variable that is not set.
	// Default: false.
	Fleet bool
	// Gate decides whether a node may renew its lease. If the lease follows Nodes, both must
	// allow it. Default: it always may.
	Gate GateFunc
	// HolderIdentity is written to the leases. A lease with another identity is
	// held by another process. Default: the name of the node, which the kubelet
	// uses too, and which some tests of Kubernetes expect.
	HolderIdentity string
	// Process distinguishes processes that serve the same nodes with the same
	// HolderIdentity. It is written to an annotation of the leases. A lease with
	// another value is held by another process. A lease with the same value was
	// written by this process before a restart, and is taken at once. So a value that
	// is set must stay the same over a restart, and two processes that run at the same
	// time must have different values, or both act. At most 128 characters.
	//
	// Default: the name of the host, with a stricter rule, because every process of the
	// host has it. A lease with it is taken at once only if its process has ended for
	// certain. A second annotation has its boot ID, namespaces, pid and start time, so
	// that a process in the same namespaces can look. When Run or Remove ends, one
	// more write says so, without a new RenewTime, if the last renewal was accepted.
	// In all other cases the process waits until the lease has expired, for example
	// after a container was killed. A Pod that replaces one with another host name
	// waits too, unless OnShutdown is ShutdownExpire.
	Process string
	// Duration is written to the leases. If a lease was not renewed for this time,
	// another process may consider it expired. Whole seconds. A lease with another
	// duration is corrected. kube-controller-manager ignores the field and uses its
	// own grace period. If that is shorter, set Duration to it, because
	// [Hooks.Recovered] depends on Duration. Default: DefaultDuration.
	Duration time.Duration
	// RenewInterval is the time between two renewals of a lease. At most half
	// of Duration, and well below the grace period of kube-controller-manager
	// (--node-monitor-grace-period, 50 s by default). A program that comes from
	// virtual-kubelet may have it in WithNodeEnableLeaseV1WithRenewInterval. Default: a
	// quarter of Duration.
	RenewInterval time.Duration
	// OnShutdown decides what happens to the leases that are held when Run ends,
	// and to the lease of a node that is removed. Default: ShutdownLeave.
	OnShutdown ShutdownPolicy
	// ResetConnections, if set, is called when two calls in a row received no byte
	// of an answer within CallTimeout, but at most once a minute. It should close
	// the connections of Client, so that the next call opens a new one. Otherwise a
	// dead connection is noticed only after 45 s (HTTP/2 idle time 30 s, ping
	// timeout 15 s). CloseAll of a dialer of k8s.io/client-go/util/connrotation
	// closes them. CloseIdleConnections of a transport is not enough, because other
	// calls may be using the connection. One worker at a time calls the function, which
	// must not block. An API server that throttles (429) has answered. The
	// controller sees this through GotFirstResponseByte of net/http/httptrace, so a
	// transport that does not come from net/http must call it. Default: none.
	ResetConnections func()

	// CallTimeout is the deadline of one API call, including retries inside
	// client-go. At most Duration. Default: a quarter of Duration, but at least
	// a second and at most DefaultCallTimeout.
	CallTimeout time.Duration
	// ShutdownTimeout limits the time for the requests of OnShutdown when Run
	// ends. Default: DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// Workers is the largest number of nodes that are visited at once, and so of
	// concurrent requests. A fleet needs the number of nodes, divided by
	// RenewInterval, times the latency of a request. That is more if the API server
	// is far away. (kwok has --node-lease-parallelism for this.) If Workers is too
	// small, [Hooks.Overloaded] is called with these numbers. A renewal that is less
	// than RenewInterval/40 late uses four of them at most, or in a fleet of more
	// than 2,000 nodes one for each 500, so that an API server that is held up for a
	// moment does not find forty renewals before the requests of pods. Default:
	// DefaultWorkers.
	Workers int

	// Name is the name in logs and health checks. Default: DefaultName.
	Name string
	// ErrorHandler is called with errors that the controller recovers from. While
	// nodes fail with errors of one class, it is called for the first error only, but
	// [Hooks.Failed] for each one. The error of a panic in a function of Config has a
	// method Stack() []byte, which errors.As finds. ErrorHandler is called synchronously,
	// by several goroutines at a time, and must not block. Default: the errors are logged
	// with the logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// EventRecorder records the events listed in docs/operations.md.
	// Default: none.
	EventRecorder events.EventRecorder
	// Hooks are called on events. Default: none.
	Hooks Hooks
}

// A ShutdownPolicy decides what happens to a lease that is no longer renewed.
type ShutdownPolicy int

const (
	// ShutdownLeave leaves the lease to its holder. With the default Process, one write
	// marks it as that of a process that has ended. If the process starts again within
	// Duration, nothing notices the restart. The garbage collector deletes the lease
	// with the Node.
	ShutdownLeave ShutdownPolicy = iota
	// ShutdownDelete deletes the lease. A process that waits for the lease can't tell that
	// from a deletion by an administrator, so it waits for Duration, unlike one that starts
	// later.
	ShutdownDelete
	// ShutdownExpire writes the lease once more, without holder and with a duration
	// of one second, so that another process can take it at once. The renew time stays
	// the same, because a new one would report the node as alive.
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
	var problems []error
	at := func(name string) *field.Path { return field.NewPath(name) }
	if lifecycle.IsNil(cfg.Client) {
		problems = append(problems, field.Required(at("Client"), "for example clientset.CoordinationV1()"))
	}
	problems = append(problems, nodename.CheckFirst("NodeName", cfg.NodeName, "Fleet", cfg.Fleet)...)
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

func (cfg *Config) completeProcess() []error {
	at := field.NewPath("Process")
	if cfg.Process == "" {
		host, err := os.Hostname()
		if err != nil || host == "" {
			return []error{field.Required(at, fmt.Sprintf("the name of the host, its default, is not known: %v", err))}
		}
		cfg.Process = host[:min(len(host), maxProcess)]
	}
	if len(cfg.Process) > maxProcess {
		return []error{field.TooLong(at, cfg.Process, maxProcess)}
	}
	return nil
}

func (cfg *Config) completeTimes() (problems []error) {
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

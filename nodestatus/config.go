// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	netutils "k8s.io/utils/net"

	"github.com/kubewright/kubewright/internal/enum"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/nodename"
	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

// The defaults of Config.
const (
	// DefaultSyncInterval is the time between two computations of a node's status, the
	// kubelet's nodeStatusUpdateFrequency.
	DefaultSyncInterval = 10 * time.Second
	// DefaultReportInterval is the time between two writes of an unchanged status,
	// the kubelet's nodeStatusReportFrequency (KEP-589).
	DefaultReportInterval = 5 * time.Minute
	// DefaultGracePeriod is at most the time that kube-controller-manager waits
	// before it makes a node Unknown: 50 s, and 40 s before Kubernetes 1.32.
	DefaultGracePeriod = 40 * time.Second
	// DefaultShutdownTimeout is the time for the last write, see OnShutdown.
	DefaultShutdownTimeout = 5 * time.Second
	// DefaultWorkers is the number of requests at once, and also of rounds that are
	// in their first 100 ms.
	DefaultWorkers = 64
	// DefaultName is the name of the controller in logs and health checks.
	DefaultName = "nodestatus"
)

// A Setter fills in fields of the node whose name is node.Name. It may set labels,
// annotations, every field of the status and, with effect only when the Node is
// created, the spec. Fields that no setter sets belong to other writers and stay. A
// field or condition that a setter has set before, and no longer sets, is removed.
//
// The node is a private copy. It is Config.Template with the name filled in, and with
// the fields that earlier setters of the round have set. The setter may write to it until
// it returns, and must not keep it. It need not fill in the times of conditions, because
// the controller does.
//
// If a setter returns an error or panics, the values of this call are discarded, and its
// last values stay. A Node that is created again has them, too. A setter is late if it
// takes longer than 5 s, or longer than its share of the 10 s that all setters of a round
// have. Then its last values stay until it returns. If it returns other values, a new round,
// which follows at once, has them. A round waits for 20 ms only for a setter that was late the
// last time. ctx is done after 30 s.
//
// Until every setter has succeeded once, for up to GracePeriod, the Node is neither
// created nor, if it exists, written. After that Ready is False with the reason
// [ReasonSetterFailed] or [ReasonSetterTimeout].
//
// A value that the API server would refuse, such as a label with a bad value, is left
// out and reported once.
//
// Setters of one node run one after another, and setters of different nodes at the same
// time. The setters after a late one run while it is still running. A setter that has not
// returned is not called again for its node, unless the node was removed and added again.
type Setter func(ctx context.Context, node *corev1.Node) error

// A HealthCheck returns nil if the node can run pods. Any error makes Ready False at
// once. The error's text becomes the message of the condition and, if it is a
// [*NotReadyError], its reason the reason. A check that does not return within 5 s counts
// as failed, and is not called again for this node before it returns. The round after that
// calls it again, but does not wait for the result. If the check now returns in time, its
// result is used in another round, which follows at once.
//
// The checks of one node run concurrently with each other and with its setters.
type HealthCheck func(ctx context.Context, nodeName string) error

// A GateFunc returns nil if this process may write the Node now. If several processes
// serve one node, it must return nil in at most one of them. The method Holds of a
// lease.Controller is a GateFunc.
//
// While it returns an error, the gate is closed. It is called before each write and in
// each round, for different nodes at the same time. It must answer from memory, and return
// when ctx is done, which is 2.5 s after the call. A call that is late or panics closes the
// gate and is reported: see "Functions of a program" in docs/operations.md. While the gate of
// a node does not answer, its status can't be written, so after a while Live returns an error.
type GateFunc func(ctx context.Context, nodeName string) error

// A Lease says which of several processes acts for a node. A *lease.Controller is one. Its
// methods are called for different nodes at the same time.
type Lease interface {
	// Holds is a [GateFunc].
	Holds(ctx context.Context, nodeName string) error
	// Trigger is called after a Node was registered, because its lease can be written from
	// then on. It must not block.
	Trigger(nodeName string)
	// Follow is called once, by New, with the Controller. OwnerReference is the owner of
	// the lease, which must be renewed only while Live returns nil. The lease calls Trigger
	// when Holds may return something else, and Resync when the Node may be Unknown or may
	// not exist. An error makes New fail.
	Follow(nodes interface {
		OwnerReference(ctx context.Context, nodeName string) (metav1.OwnerReference, error)
		Live(ctx context.Context, nodeName string) error
		Trigger(nodeName string)
		Resync(nodeName string)
	}) error
}

// Config configures a Controller. The zero value of every optional field means
// the default that its comment states.
type Config struct {
	// Required. Client reads and writes Nodes. clientset.CoreV1() is one. It should
	// share a connection with the lease controller, and not with informers. Its rate
	// limit must be off (QPS -1) or be high enough for the number of nodes.
	Client corev1client.NodesGetter
	// Required, unless Fleet is set. NodeName is the name of the Node that is
	// managed from the start.
	NodeName string

	// Fleet lets NodeName be empty. [Controller.Add] and [Controller.Remove] add
	// and remove nodes, and there may be none. Without Fleet, New rejects an empty
	// NodeName, because it may come from an environment variable that is not set.
	// Default: false.
	Fleet bool
	// Template has the labels, annotations, spec and status with which each round of
	// every node begins, before the setters run. The spec, such as taints and
	// providerID, ownerReferences and finalizers have an effect only when the Node is
	// created. The name must be empty or NodeName. There must be no Ready condition,
	// because health checks decide about it. New rejects labels, annotations, owners,
	// finalizers, taints, Pod CIDRs and parts of the status that the API server would
	// refuse. It does not validate the rest.
	// Default: an empty Node.
	Template *corev1.Node
	// KeepTaints are taints that every node must have. The Node is created with them,
	// and they are added again if another client removes them. Taints of Template and
	// of setters, in contrast, are set only when the Node is created, so that another
	// controller, such as a cloud controller manager, can remove them. It is for virtual
	// nodes whose taint keeps all other pods away, such as liqo's
	// virtual-node.liqo.io/not-allowed. KeepTaints needs the permission to patch nodes. New
	// rejects it with NodeCredentials,
	// because a node's credentials may not change taints. Default: none.
	KeepTaints []corev1.Taint
	// Setters fill in the status, in this order. Default: none.
	Setters []Setter
	// HealthChecks decide about the Ready condition. Default: none, and Ready is
	// True while the setters work, unless a setter sets it.
	HealthChecks []HealthCheck
	// Lease is the lease of the node. While another process holds it, nothing is written, as
	// with a closed Gate. It is renewed while the Node is registered and Live returns nil, and
	// the two notify each other of changes. Run must not have been called for it. If Gate is
	// set too, both must allow a write. In a fleet, add each node to both controllers.
	// Default: none.
	Lease Lease
	// Gate decides whether the Node may be written. While it is closed, setters and
	// health checks run, and the Node is read to register it or if the event handler
	// asks for it. But nothing is written, not even when Run ends. There is one
	// exception: a Node that does not exist is created, because it must own the lease.
	// When Gate opens again, the Node is read and its whole status written. Call
	// [Controller.Trigger] when the gate may have opened, for example from the hook
	// PhaseChanged of the lease. Otherwise the next round notices it. Default: always
	// open.
	Gate GateFunc
	// NodeCredentials must be true if Client authenticates as system:node:NodeName,
	// as kubelets do. The API server lets such an identity set only a few of the
	// labels under kubernetes.io and k8s.io (NodeRestriction). New rejects a Template
	// with another label of this kind. If a setter sets one, it is left out and
	// reported. Default: false, for a ServiceAccount or an administrator.
	NodeCredentials bool
	// SyncInterval is the time between two rounds of setters and health checks.
	// At least 100 ms. Default: DefaultSyncInterval.
	SyncInterval time.Duration
	// ReportInterval is the time between two writes of an unchanged status. At least
	// SyncInterval. After a change, the next write comes after half of the interval to
	// one and a half, at random, so that the writes of a fleet are spread. If the node
	// has no lease, ReportInterval must be below the grace period of
	// kube-controller-manager; use SyncInterval. The kubelet has it as
	// nodeStatusReportFrequency. Default: DefaultReportInterval.
	ReportInterval time.Duration
	// GracePeriod should be a little less than --node-monitor-grace-period of
	// kube-controller-manager, which Kubespray sets to 40 s. If the process was suspended for so long, the node may
	// have been set to Unknown. Then the controller reads the Node, and its next write has
	// the whole status. The first write waits for setters that have not succeeded yet, for
	// GracePeriod at most. Default: DefaultGracePeriod.
	GracePeriod time.Duration

	// OnDeleted decides what happens if another client deletes the Node. Default:
	// DeletedExit.
	OnDeleted DeletedPolicy
	// OnShutdown decides which last write a node gets when Run ends and when the node
	// is removed. Default: ShutdownLeave.
	OnShutdown ShutdownPolicy

	// ShutdownTimeout limits the time for the last writes when Run ends. Default:
	// DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// Workers is the largest number of requests at once, and also of rounds that are
	// in their first 100 ms. Raise it if [Hooks.Overloaded] is called because functions
	// are slow. Raise it also if the API server is slow: it must be larger than the
	// number of nodes, times the latency of a request, divided by ReportInterval. (kwok has
	// the option nodePlayStageParallelism for this.)
	// Default: DefaultWorkers.
	Workers int

	// Name is the name in logs and health checks. Default: DefaultName.
	Name string
	// ErrorHandler is called with errors that the controller recovers from. While
	// nodes fail with errors of one class, it is called for the first error only, but
	// [Hooks.Failed] and [Hooks.SetterFailed] for each one. Errors of health checks in the
	// first 15 s of a node are logged at V4 only, because a program that starts may not be
	// ready yet. The error of a panic in a function of Config has a method Stack() []byte,
	// which errors.As finds.
	// ErrorHandler is called synchronously, by several goroutines at a time, and must not
	// block. Default: the errors are logged with the logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// EventRecorder records the events listed in docs/operations.md.
	// Default: none.
	EventRecorder events.EventRecorder
	// Hooks are called on events. Default: none.
	Hooks Hooks
}

// A DeletedPolicy decides what happens if another client deletes the Node.
type DeletedPolicy int

const (
	// DeletedExit ends Run with [ErrNodeDeleted] if the node is
	// Config.NodeName. For a node that was added with Add it does the same as
	// DeletedIdle, so that one node does not end ten thousand. An administrator
	// deletes a Node to let a StatefulSet replace its pods after a machine was lost.
	// A process that registers the Node again on its own would undo this.
	DeletedExit DeletedPolicy = iota
	// DeletedReregister creates the Node again after one to one and a half
	// SyncIntervals. It is for virtual nodes, whose pods are not replaced in this
	// way.
	DeletedReregister
	// DeletedIdle sends no request for the node until the event handler sees a Node
	// of this name, Resync is called, or the node is removed and added again.
	DeletedIdle
)

// String returns the name of the policy.
func (p DeletedPolicy) String() string {
	return enum.Name(p, "Exit", "Reregister", "Idle")
}

// A ShutdownPolicy decides which last write a node gets before Run returns, and after
// Remove.
type ShutdownPolicy int

const (
	// ShutdownLeave writes nothing. A restart within the grace period changes
	// nothing on the Node.
	ShutdownLeave ShutdownPolicy = iota
	// ShutdownNotReady makes Ready False with the reason [ReasonShutdown], so
	// that the scheduler sends no more pods and endpoints drop the node's pods at
	// once.
	ShutdownNotReady
	// ShutdownUnregister deletes the Node, if it is still the same object. The
	// credentials of a node may not delete it, so New rejects the combination with
	// Config.NodeCredentials.
	ShutdownUnregister
)

// String returns the name of the policy.
func (p ShutdownPolicy) String() string {
	return enum.Name(p, "Leave", "NotReady", "Unregister")
}

// minGap is the least time between two rounds of a node: triggers that come
// faster are one.
const minGap = 100 * time.Millisecond

// longest is the longest time that is reckoned with, nine years: sums of several
// are no less than each, which the largest durations that are asked for would
// not give.
const longest time.Duration = 1 << 58

// complete copies the values that the Config points to, fills in the defaults and returns
// all that is wrong.
func (cfg *Config) complete() error {
	var problems []error
	if lifecycle.IsNil(cfg.Client) {
		problems = append(problems, field.Required(field.NewPath("Client"), "for example clientset.CoreV1()"))
	}
	problems = append(problems, nodename.CheckFirst("NodeName", cfg.NodeName, "Fleet", cfg.Fleet)...)
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	problems = append(problems, cfg.completeTimes()...)
	problems = append(problems, lifecycle.DefaultInt("Workers", &cfg.Workers, DefaultWorkers, 1)...)
	if cfg.Lease != nil && lifecycle.IsNil(cfg.Lease) {
		problems = append(problems, field.Required(field.NewPath("Lease"), fmt.Sprintf("a nil %T is no lease", cfg.Lease)))
	}
	problems = append(problems, cfg.checkFunctions()...)
	problems = append(problems, cfg.checkPolicies()...)

	cfg.Setters = slices.Clone(cfg.Setters)
	cfg.HealthChecks = slices.Clone(cfg.HealthChecks)
	cfg.KeepTaints = slices.Clone(cfg.KeepTaints)
	cfg.Template = cfg.Template.DeepCopy()
	if cfg.Template == nil {
		cfg.Template = &corev1.Node{}
	}
	problems = append(problems, cfg.checkTemplate()...)
	return lifecycle.InvalidConfig("nodestatus", problems)
}

func (cfg *Config) completeTimes() []error {
	var problems []error
	for _, d := range []struct {
		name         string
		value        *time.Duration
		def, minimum time.Duration
	}{
		{"SyncInterval", &cfg.SyncInterval, DefaultSyncInterval, minGap},
		{"ReportInterval", &cfg.ReportInterval, max(DefaultReportInterval, cfg.SyncInterval), minGap},
		{"GracePeriod", &cfg.GracePeriod, DefaultGracePeriod, time.Second},
		{"ShutdownTimeout", &cfg.ShutdownTimeout, DefaultShutdownTimeout, time.Millisecond},
	} {
		problems = append(problems, lifecycle.DefaultDuration(d.name, d.value, d.def, d.minimum)...)
		*d.value = min(*d.value, longest)
	}
	if cfg.SyncInterval >= minGap && cfg.ReportInterval >= minGap && cfg.ReportInterval < cfg.SyncInterval {
		problems = append(problems, field.Invalid(field.NewPath("ReportInterval"), cfg.ReportInterval.String(),
			fmt.Sprintf("must be at least SyncInterval, which is %v", cfg.SyncInterval)))
	}
	return problems
}

func (cfg *Config) checkFunctions() []error {
	var problems []error
	for i, setter := range cfg.Setters {
		if setter == nil {
			problems = append(problems, field.Required(field.NewPath("Setters").Index(i), "must not be nil"))
		}
	}
	for i, check := range cfg.HealthChecks {
		if check == nil {
			problems = append(problems, field.Required(field.NewPath("HealthChecks").Index(i), "must not be nil"))
		}
	}
	return problems
}

func (cfg *Config) checkPolicies() []error {
	var problems []error
	problems = append(problems, enum.Check("OnDeleted", cfg.OnDeleted, DeletedIdle)...)
	problems = append(problems, enum.Check("OnShutdown", cfg.OnShutdown, ShutdownUnregister)...)
	if cfg.NodeCredentials && cfg.OnShutdown == ShutdownUnregister {
		problems = append(problems, field.Forbidden(field.NewPath("OnShutdown"),
			"ShutdownUnregister needs credentials other than a node's, which may not delete its Node: leave NodeCredentials unset, or use ShutdownNotReady"))
	}
	return problems
}

func (cfg *Config) checkTemplate() []error {
	template, path := cfg.Template, field.NewPath("Template")
	var problems []error
	if template.Name != "" && template.Name != cfg.NodeName {
		problems = append(problems, field.Invalid(path.Child("Name"), template.Name, "must be empty or NodeName"))
	}
	if template.GenerateName != "" {
		problems = append(problems, field.Forbidden(path.Child("GenerateName"), "a node must know its name"))
	}
	if cfg.NodeCredentials && len(cfg.KeepTaints) > 0 {
		problems = append(problems, field.Forbidden(field.NewPath("KeepTaints"),
			"node credentials may not change the taints of a Node that exists (NodeRestriction): use Template, or other credentials"))
	}
	problems = append(problems, refused(path, template.DeepCopy(), cfg.NodeCredentials)...)
	problems = append(problems, checkCreation(path, template)...)
	problems = append(problems, refused(field.NewPath("KeepTaints"), &corev1.Node{Spec: corev1.NodeSpec{Taints: slices.Clone(cfg.KeepTaints)}}, false)...)
	//lint:ignore SA1019 NodeRestriction still refuses it
	if cfg.NodeCredentials && template.Spec.ConfigSource != nil {
		problems = append(problems, field.Forbidden(path.Child("Spec", "ConfigSource"), "node credentials may not set it (NodeRestriction)"))
	}
	for i, c := range template.Status.Conditions {
		if c.Type == corev1.NodeReady {
			problems = append(problems, field.Forbidden(path.Child("Status", "Conditions").Index(i), "health checks decide about Ready: use HealthChecks, SetNotReady or a setter"))
		}
	}
	if err := status.CheckConditions(template.Status.Conditions); err != nil {
		problems = append(problems, field.Invalid(path.Child("Status", "Conditions"), len(template.Status.Conditions), err.Error()))
	}
	return problems
}

// checkCreation returns the problems of fields that have an effect only when the Node is
// created. Otherwise New would succeed, and each registration fail.
func checkCreation(path *field.Path, template *corev1.Node) []error {
	problems := apivalidation.ValidateOwnerReferences(template.OwnerReferences, path.Child("OwnerReferences"))
	at := path.Child("Finalizers")
	problems = append(problems, apivalidation.ValidateFinalizers(template.Finalizers, at)...)
	for i, name := range template.Finalizers {
		isStandard := slices.Contains([]string{string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents}, name)
		if !strings.Contains(name, "/") && !isStandard {
			problems = append(problems, field.Invalid(at.Index(i), name, "must have a domain, as in example.com/name"))
		}
	}
	at = path.Child("Spec", "PodCIDRs")
	cidrs := template.Spec.PodCIDRs
	if first := template.Spec.PodCIDR; first != "" && (len(cidrs) == 0 || first != cidrs[0]) {
		cidrs = []string{first} // as the API server reads it
	}
	for i, cidr := range cidrs {
		problems = append(problems, validation.IsValidCIDRForLegacyField(at.Index(i), cidr, false, nil)...)
	}
	if dual, err := netutils.IsDualStackCIDRStrings(cidrs); err == nil && len(cidrs) > 1 && (!dual || len(cidrs) > 2) {
		problems = append(problems, field.Invalid(at, cidrs, "must be at most one for each IP family"))
	}
	return lifecycle.Problems(problems)
}

// refused returns the parts of node that the API server would refuse. From what a setter
// sets they are left out.
func refused(path *field.Path, node *corev1.Node, nodeCredentials bool) []error {
	var problems []error
	for _, problem := range status.DropInvalid(node, nodeCredentials) {
		problems = append(problems, field.Forbidden(path, problem))
	}
	return problems
}

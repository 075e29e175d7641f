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
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/internal/enum"
	"github.com/kubewright/kubewright/internal/lifecycle"
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
	// DefaultGracePeriod is below the 50 s (40 s before Kubernetes 1.32) that
	// kube-controller-manager waits before it calls a node Unknown.
	DefaultGracePeriod = 40 * time.Second
	// DefaultShutdownTimeout is the time for what OnShutdown asks for.
	DefaultShutdownTimeout = 5 * time.Second
	// DefaultWorkers is the number of rounds that run at once.
	DefaultWorkers = 64
	// DefaultName is the name of the controller in logs and health checks.
	DefaultName = "nodestatus"
)

// A Setter fills in fields of the node whose name is node.Name. It may set labels,
// annotations, every field of the status and, with effect only when the Node is
// created, the spec. Fields that no setter sets belong to other writers and stay. A
// field that a setter has set and sets no longer is removed, conditions included.
//
// The node is a scratch copy: it starts as Config.Template with the name filled
// in and holds the fields that the setters before this one have set. The setter may
// write to it until it returns, and must not keep it. Times of conditions need not be
// filled in: the controller does.
//
// An error or a panic discards the values of this call and keeps the setter's last
// values, which a Node that is created again has, too. So does a call that takes longer
// than 5 s, or than its share of the 10 s that the setters of a round have, until it
// returns: its values then go into the next round, which follows at once. A round hardly
// waits for a setter that was late the last time. Its ctx is done after 30 s. Until every
// setter has succeeded once, no Node is created and none that was there before is
// written for up to GracePeriod; after that Ready is False with the reason
// [ReasonSetterFailed] or [ReasonSetterTimeout].
//
// A value that the API server would refuse, such as a label with a bad value, is left
// out and reported once.
//
// Setters of one node run one after another, those of different nodes at the
// same time. One that is late runs beside those after it. One that has not returned
// is not called again for its node, unless the node was removed and added again.
type Setter func(ctx context.Context, node *corev1.Node) error

// A HealthCheck says whether the node can run pods: nil for yes. Any error
// makes Ready False at once, with the error's text as message and, if the
// error is a [*NotReadyError], its reason. A check that does not return within 5 s
// counts as failed, and is not called again for this node before it returns. The next
// call is not waited for: if it returns in time its result goes into another round,
// which follows at once.
//
// The checks of one node run at the same time as each other and as its setters.
type HealthCheck func(ctx context.Context, nodeName string) error

// A GateFunc says whether this process may write the Node now: nil for yes. Of
// several processes that serve one node it lets one act. The method Holds of a
// lease.Controller is one.
//
// While it returns an error the gate is closed. It is called before each write, and in
// each round, for different nodes at the same time, so it must answer from memory. A
// panic means no, and is reported.
type GateFunc func(ctx context.Context, nodeName string) error

// Config configures a Controller. The zero value of every optional field means
// the default that its comment states.
type Config struct {
	// Required. Client reads and writes Nodes. clientset.CoreV1() is one. Its
	// transport should be shared with the lease controller's heartbeats rather
	// than with informers, and its rate limit must be off (QPS -1) or fit the
	// number of nodes.
	Client corev1client.NodesGetter
	// Required, unless Fleet is set. NodeName is the name of the Node that is
	// managed from the start.
	NodeName string

	// Fleet lets NodeName be empty: nodes come and go with [Controller.Add] and
	// [Controller.Remove], and there may be none at all. Without it an empty
	// NodeName, such as that of an unset environment variable, is refused.
	// Default: false.
	Fleet bool
	// Template is the start of every node: its labels, annotations, spec
	// and status go into each round before the setters run. Taints, providerID
	// and the rest of the spec, ownerReferences and finalizers take effect
	// when the Node is created, and are never changed after that. Its name
	// must be empty or NodeName, and it must not have a Ready condition, which health
	// checks decide about. Default: an empty Node.
	Template *corev1.Node
	// KeepTaints are taints that every node must have: it is created with them, and
	// they are added again if another client removes them. Taints of Template and of
	// setters are for the creation only, and a controller that removes one, such as a
	// cloud controller manager, is not contradicted. It needs the permission to patch
	// nodes, and node credentials may not change taints: New refuses the combination
	// with NodeCredentials. Default: none.
	KeepTaints []corev1.Taint
	// Setters fill in the status, in this order. Default: none.
	Setters []Setter
	// HealthChecks decide about the Ready condition. Default: none, and Ready is
	// True while the setters work, unless a setter sets it.
	HealthChecks []HealthCheck
	// Gate says whether the Node may be written. While it does not, setters and
	// health checks run, and the Node is read when it is registered or the event
	// handler asks for it, but nothing is written, not even at the end. One
	// request is made without it: a Node that does not exist is created, because a
	// lease needs it for an owner. When Gate opens again the Node is read and
	// written whole. Call [Controller.Trigger] when it may have opened, such as
	// from the hook PhaseChanged of the lease; otherwise the next round finds out.
	// Default: always open.
	Gate GateFunc
	// NodeCredentials says that Client authenticates as system:node:NodeName,
	// as kubelets do. The API server lets such an identity set few of the
	// labels under kubernetes.io and k8s.io (NodeRestriction): New refuses a
	// Template with another one, and one that a setter sets is left out and
	// reported. Default: false, for a ServiceAccount or an administrator.
	NodeCredentials bool
	// SyncInterval is the time between two rounds of setters and health checks.
	// At least 100 ms. Default: DefaultSyncInterval.
	SyncInterval time.Duration
	// ReportInterval is the time between two writes of an unchanged status. At least
	// SyncInterval. The first report after a change comes after between half
	// and one and a half of it, so that a fleet spreads. Without a lease it
	// must be below the grace period of kube-controller-manager; SyncInterval
	// is a good choice then. Default: DefaultReportInterval.
	ReportInterval time.Duration
	// GracePeriod is the silence after which another client may have set the node to
	// Unknown: --node-monitor-grace-period of kube-controller-manager with a
	// margin. When the process slept or the API failed for so long, the next
	// write is complete and is based on a fresh read.
	// Default: DefaultGracePeriod.
	GracePeriod time.Duration

	// OnDeleted is the policy for a Node that another client has deleted.
	// Default: DeletedExit.
	OnDeleted DeletedPolicy
	// OnShutdown is the last write for a node, when Run ends and when it is removed.
	// Default: ShutdownLeave.
	OnShutdown ShutdownPolicy

	// ShutdownTimeout bounds what OnShutdown asks for. Default:
	// DefaultShutdownTimeout.
	ShutdownTimeout time.Duration
	// Workers is the largest number of requests at once, and of rounds that are in
	// their first 100 ms. Raise it for fleets with functions so slow that
	// [Hooks.Overloaded] is called, or with an API server so slow that Nodes times its
	// latency, divided by ReportInterval, comes near it. Default: DefaultWorkers.
	Workers int

	// Name is the name in logs and health checks. Default: DefaultName.
	Name string
	// ErrorHandler is called with errors that the controller recovers from: with the
	// first of each class while nodes fail with it. [Hooks.Failed] and
	// [Hooks.SetterFailed] are called for every one. Panics in functions of Config are
	// errors with a method Stack() []byte, which errors.As finds. It is called
	// synchronously and must not block. Default: the logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// EventRecorder records the events listed in docs/operations.md.
	// Default: none.
	EventRecorder events.EventRecorder
	// Hooks are called on events. Default: none.
	Hooks Hooks
}

// A DeletedPolicy is the policy for a Node that another client has deleted.
type DeletedPolicy int

const (
	// DeletedExit ends Run with [ErrNodeDeleted] if the node is
	// Config.NodeName; a node that came with Add falls idle as with
	// DeletedIdle, so that one of ten thousand does not end the others.
	// Deleting the Node is how StatefulSets are fenced from a lost machine: a
	// process that registers it again on its own undoes that.
	DeletedExit DeletedPolicy = iota
	// DeletedReregister creates the Node again after one to one and a half
	// SyncIntervals. It is what virtual nodes want, whose pods are not fenced.
	DeletedReregister
	// DeletedIdle makes no further call for the node until the event handler
	// sees a Node of this name, Resync asks to look for one, or it is removed
	// and added again.
	DeletedIdle
)

// String returns the name of the policy.
func (p DeletedPolicy) String() string {
	return enum.Name(p, "Exit", "Reregister", "Idle")
}

// A ShutdownPolicy is the last write for a node: before Run returns, and after Remove.
type ShutdownPolicy int

const (
	// ShutdownLeave writes nothing: a restart within the grace period is
	// invisible.
	ShutdownLeave ShutdownPolicy = iota
	// ShutdownNotReady makes Ready False with the reason [ReasonShutdown], so
	// that the scheduler and endpoints know at once.
	ShutdownNotReady
	// ShutdownUnregister deletes the Node, if it is still the object that was
	// served. A kubelet's identity may not: New refuses the combination with
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
	var problems field.ErrorList
	if lifecycle.IsNil(cfg.Client) {
		problems = append(problems, field.Required(field.NewPath("Client"), "for example clientset.CoreV1()"))
	}
	problems = append(problems, lifecycle.CheckFirstNode("NodeName", cfg.NodeName, "Fleet", cfg.Fleet)...)
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	problems = append(problems, cfg.completeTimes()...)
	problems = append(problems, lifecycle.DefaultInt("Workers", &cfg.Workers, DefaultWorkers, 1)...)
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

func (cfg *Config) completeTimes() field.ErrorList {
	var problems field.ErrorList
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

func (cfg *Config) checkFunctions() field.ErrorList {
	var problems field.ErrorList
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

func (cfg *Config) checkPolicies() field.ErrorList {
	var problems field.ErrorList
	problems = append(problems, enum.Check("OnDeleted", cfg.OnDeleted, DeletedIdle)...)
	problems = append(problems, enum.Check("OnShutdown", cfg.OnShutdown, ShutdownUnregister)...)
	if cfg.NodeCredentials && cfg.OnShutdown == ShutdownUnregister {
		problems = append(problems, field.Forbidden(field.NewPath("OnShutdown"),
			"ShutdownUnregister needs credentials other than a node's, which may not delete its Node: leave NodeCredentials unset, or use ShutdownNotReady"))
	}
	return problems
}

func (cfg *Config) checkTemplate() field.ErrorList {
	template, path := cfg.Template, field.NewPath("Template")
	var problems field.ErrorList
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
	problems = append(problems, metav1validation.ValidateLabels(template.Labels, path.Child("Labels"))...)
	problems = append(problems, apivalidation.ValidateAnnotations(template.Annotations, path.Child("Annotations"))...)
	if keys := status.ForbiddenLabels(template.Labels); cfg.NodeCredentials && len(keys) > 0 {
		problems = append(problems, field.Forbidden(path.Child("Labels"),
			fmt.Sprintf("node credentials may not set %s (NodeRestriction); see MayLabel", strings.Join(keys, ", "))))
	}
	//lint:ignore SA1019 NodeRestriction still refuses it
	if cfg.NodeCredentials && template.Spec.ConfigSource != nil {
		problems = append(problems, field.Forbidden(path.Child("Spec", "ConfigSource"), "node credentials may not set it (NodeRestriction)"))
	}
	problems = append(problems, checkTaints(path.Child("Spec", "Taints"), template.Spec.Taints)...)
	problems = append(problems, checkTaints(field.NewPath("KeepTaints"), cfg.KeepTaints)...)
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

func checkTaints(path *field.Path, taints []corev1.Taint) field.ErrorList {
	var problems field.ErrorList
	for i, taint := range taints {
		at := path.Index(i)
		for _, problem := range validation.IsQualifiedName(taint.Key) {
			problems = append(problems, field.Invalid(at.Child("Key"), taint.Key, problem))
		}
		switch taint.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			problems = append(problems, field.NotSupported(at.Child("Effect"), taint.Effect,
				[]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}))
		}
	}
	return problems
}

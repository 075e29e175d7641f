// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/internal/enum"
	"github.com/kubewright/kubewright/internal/lifecycle"
)

// The defaults of Config and Policy.
const (
	// DefaultRelist is how often List is called of a provider that does not
	// report by itself.
	DefaultRelist = 10 * time.Second
	// DefaultRelistWatched is how often List is called of a provider that is a
	// Watcher.
	DefaultRelistWatched = 2 * time.Minute
	// DefaultPendingAfter is how long the first status waits for the pod to
	// run, so that one write does for both.
	DefaultPendingAfter = time.Second
	// DefaultMaxCalls is how many calls of Start and Update run at once, and
	// how many of Stop and Release besides them. A call under way costs a
	// goroutine and nothing else; the number only bounds what a backend that
	// hangs can tie up.
	DefaultMaxCalls = 512
	// DefaultStatusWriters is how many status writes and deletions run at
	// once: 3,200 a second where each takes 10 ms. A kube-apiserver that is
	// near and small gets no faster beyond eight, and one node should not
	// take all the places that API priority and fairness gives to nodes.
	DefaultStatusWriters = 32
	// DefaultRetryMin is the delay after the first failure of a call.
	DefaultRetryMin = time.Second
	// DefaultRetryMax is the longest delay between two tries of a call.
	DefaultRetryMax = 5 * time.Minute
	// DefaultCallTimeout is the deadline of one API request.
	DefaultCallTimeout = 10 * time.Second
	// DefaultShutdownTimeout is the time for storing final statuses that are
	// known when Run is told to return.
	DefaultShutdownTimeout = 5 * time.Second
	// DefaultOrphanDelay is how long an instance must be without a pod before
	// the API is asked about it.
	DefaultOrphanDelay = 30 * time.Second
	// DefaultMassHold is how long many instances without pods run on.
	DefaultMassHold = 10 * time.Minute
	// DefaultName is the name of the controller in logs and health checks.
	DefaultName = "podsync"
)

// Config configures a Controller. The zero value of every optional field means
// the default that its comment states.
type Config struct {
	// Required. Client writes the status of pods and deletes them.
	// clientset.CoreV1() is one. Its rate limit should be off (QPS -1): the
	// default of client-go is five requests a second, for all pods together.
	Client corev1client.PodsGetter
	// Required. Provider runs the pods. See [Updater], [Watcher], [Inspector],
	// [Releaser] and [Admitter] for what it may do besides.
	Provider Provider
	// Required, unless Informer is set. NodeName is the node whose pods are
	// run.
	NodeName string

	// Informer is where pods are seen. The embedder starts it; it must be of
	// type *corev1.Pod. With it one Controller serves as many nodes as Owns
	// says. Default: the Controller runs its own, which selects
	// spec.nodeName=NodeName on the server and keeps no managedFields.
	Informer cache.SharedIndexInformer
	// Owns says which pods of Informer are run. It is asked with pods that it
	// must not change, and its answer must not change during a pod's life. Default:
	// those with spec.nodeName NodeName; with an empty NodeName those bound to
	// any node.
	Owns func(pod *corev1.Pod) bool
	// Gate says whether this process may act for a node. While it does not, the
	// Controller starts and stops nothing on the node and writes nothing about
	// its pods; when it does again, the pods are reconciled with a new List. Two
	// processes with one node name need it, or each pod runs twice:
	// lease.Controller.Holds is one. Default: the process may always act.
	Gate GateFunc
	// Policy says what happens to pods in the cases that can be seen in more
	// than one way. Default: the zero Policy.
	Policy Policy

	// Relist is the time between two calls of List, give or take a tenth of
	// it. Default: DefaultRelistWatched for a Watcher, else DefaultRelist.
	Relist time.Duration
	// PendingAfter is how long the first status waits for the pod to run, and
	// how long the status of a pod that is stopping waits for its end. A
	// negative value means not at all. Default: DefaultPendingAfter.
	PendingAfter time.Duration
	// MaxCalls is how many calls of Start and Update run at once, and how many
	// of Stop and Release. Default: DefaultMaxCalls.
	MaxCalls int
	// StatusWriters is how many API requests run at once.
	// Default: DefaultStatusWriters.
	StatusWriters int
	// RetryMin and RetryMax bound the delay before a failed call of the
	// provider or the API is repeated. It doubles with each failure, with
	// jitter. Retries never end. Defaults: DefaultRetryMin, DefaultRetryMax.
	RetryMin time.Duration
	RetryMax time.Duration
	// CallTimeout is the deadline of one API request, its retries inside
	// client-go included. Default: DefaultCallTimeout.
	CallTimeout time.Duration
	// ShutdownTimeout is how long Run goes on after its context is done, to
	// store the final statuses that it knows. Default: DefaultShutdownTimeout.
	ShutdownTimeout time.Duration

	// Name is the name in logs and health checks. Default: DefaultName.
	Name string
	// ErrorHandler is told of errors that the controller goes on from: of the
	// first of each class while pods fail with it. [Hooks.ProviderCall] and
	// [Hooks.APICall] are told of all. It is called synchronously and must not
	// block. Default: the logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// EventRecorder records the events listed in the package comment.
	// Default: none.
	EventRecorder events.EventRecorder
	// ContainerEvents records the Normal events that a kubelet records about
	// containers: Pulled, Created, Started and Killing. They follow from changes of
	// container statuses. Programs look for the events of the source "kubelet":
	// create the recorder with that name. Default: none.
	ContainerEvents events.EventRecorder
	// HostIPs returns the addresses of a node, the primary one first. They are
	// status.hostIP and hostIPs unless the provider reports others, and podIP and
	// podIPs of a pod that uses the host's network. It is called before each
	// status write, and must answer from memory. Default: none.
	HostIPs func(nodeName string) []string
	// Hooks are called on what happens. Default: none.
	Hooks Hooks
}

// Policy says what happens in the cases that can be seen in more than one way.
// Its zero value is the cautious choice in each.
type Policy struct {
	// Lost says what becomes of a pod that had started and that the provider
	// does not hold any more. Default: LostByRestartPolicy.
	Lost LostPolicy
	// KeepOrphans leaves instances alone whose pods are gone from the API, and
	// does not make others wait for their names. Default: they are stopped,
	// after the API has confirmed it for each.
	KeepOrphans bool
	// OrphanDelay is how long List must have returned an instance without a
	// pod before the API is asked. Default: DefaultOrphanDelay.
	OrphanDelay time.Duration
	// ExclusiveBackend says that every instance that List returns was started
	// for Config.NodeName, as if State.NodeName said so. Without it, and without
	// State.NodeName, an orphan is stopped only if the API answers a GET of its
	// pod with 404; the credentials of a node get 403, and the orphan is kept
	// and reported.
	ExclusiveBackend bool
	// MassHold is how long the API must say that pods are gone before their
	// instances are stopped, if that is said of more than five and more than a
	// quarter of the provider's pods, or of all of two or more. So many are
	// more likely to be a mistake, such as a wrong cluster, or an API server
	// that was restored from a backup. [Hooks.MassOrphans] is called in the
	// meantime. A negative value means that they are never stopped.
	// Default: DefaultMassHold.
	MassHold time.Duration
	// Overlap lets a pod start while another one of its namespace and name has
	// not stopped. Default: it waits, which is what backends that go by names
	// and StatefulSets need.
	Overlap bool
	// ReleaseAfter is how long after its grace period a pod is deleted from the
	// API although the provider has not confirmed that it has stopped. It is
	// stopped on. Default: never, since whatever takes the pod's place would
	// run beside it.
	ReleaseAfter time.Duration
	// IgnoreDeadline leaves spec.activeDeadlineSeconds to the provider.
	// Default: a pod beyond it is stopped and Failed.
	IgnoreDeadline bool
	// UpdateMetadata calls Update also for a change of labels or annotations.
	// Default: only for a change of the spec.
	UpdateMetadata bool
	// TrustPhase takes the phase from State.Status.Phase where it is set, for
	// providers that have no container statuses. Default: the phase is derived
	// from container statuses.
	TrustPhase bool
}

// A LostPolicy says what becomes of pods that the provider has lost.
type LostPolicy int

const (
	// LostByRestartPolicy starts a lost pod again if its restart policy is
	// Always, and fails it otherwise: nobody knows how far its work had gone.
	LostByRestartPolicy LostPolicy = iota
	// LostFail fails every lost pod.
	LostFail
	// LostRestart starts every lost pod again.
	LostRestart
)

// String returns the name of the policy.
func (p LostPolicy) String() string {
	return enum.Name(p, "ByRestartPolicy", "Fail", "Restart")
}

// complete fills in the defaults and returns all that is wrong.
func (cfg *Config) complete() error {
	var problems field.ErrorList
	if cfg.Client == nil {
		problems = append(problems, field.Required(field.NewPath("Client"), "for example clientset.CoreV1()"))
	}
	if cfg.Provider == nil {
		problems = append(problems, field.Required(field.NewPath("Provider"), "what runs the pods"))
	}
	if cfg.NodeName == "" && cfg.Informer == nil {
		problems = append(problems, field.Required(field.NewPath("NodeName"), "unless Informer is set"))
	}
	problems = append(problems, lifecycle.CheckNodeName("NodeName", cfg.NodeName)...)
	if cfg.Owns != nil && cfg.Informer == nil {
		problems = append(problems, field.Invalid(field.NewPath("Owns"), "func", "needs Informer: the Controller's own shows the pods of NodeName only"))
	}
	if cfg.Owns == nil {
		node := cfg.NodeName
		cfg.Owns = func(pod *corev1.Pod) bool {
			return pod.Spec.NodeName != "" && (node == "" || pod.Spec.NodeName == node)
		}
	}
	if cfg.Policy.MassHold == 0 {
		cfg.Policy.MassHold = DefaultMassHold
	}
	cfg.Policy.MassHold = min(cfg.Policy.MassHold, horizon)
	relist := DefaultRelist
	if _, ok := cfg.Provider.(Watcher); ok {
		relist = DefaultRelistWatched
	}
	if cfg.PendingAfter == 0 {
		cfg.PendingAfter = DefaultPendingAfter
	}
	cfg.PendingAfter = min(max(cfg.PendingAfter, 0), horizon)
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	const ms = time.Millisecond
	for _, d := range []struct {
		name     string
		value    *time.Duration
		def, min time.Duration
	}{
		{"Relist", &cfg.Relist, relist, 100 * ms},
		{"RetryMin", &cfg.RetryMin, DefaultRetryMin, ms},
		{"RetryMax", &cfg.RetryMax, max(DefaultRetryMax, cfg.RetryMin), ms},
		{"CallTimeout", &cfg.CallTimeout, DefaultCallTimeout, ms},
		{"ShutdownTimeout", &cfg.ShutdownTimeout, DefaultShutdownTimeout, ms},
		{"Policy.OrphanDelay", &cfg.Policy.OrphanDelay, DefaultOrphanDelay, ms},
	} {
		problems = append(problems, lifecycle.DefaultDuration(d.name, d.value, d.def, d.min)...)
		*d.value = min(*d.value, horizon)
	}
	problems = append(problems, lifecycle.DefaultInt("MaxCalls", &cfg.MaxCalls, DefaultMaxCalls, 1)...)
	problems = append(problems, lifecycle.DefaultInt("StatusWriters", &cfg.StatusWriters, DefaultStatusWriters, 1)...)
	if cfg.RetryMax > 0 && cfg.RetryMax < cfg.RetryMin {
		problems = append(problems, field.Invalid(field.NewPath("RetryMax"), cfg.RetryMax.String(), "must be at least RetryMin"))
	}
	problems = append(problems, enum.Check("Policy.Lost", cfg.Policy.Lost, LostRestart)...)
	if cfg.Policy.ReleaseAfter < 0 {
		problems = append(problems, field.Invalid(field.NewPath("Policy.ReleaseAfter"), cfg.Policy.ReleaseAfter.String(), "must not be negative"))
	}
	cfg.Policy.ReleaseAfter = min(cfg.Policy.ReleaseAfter, horizon)
	return lifecycle.InvalidConfig("podsync", problems)
}

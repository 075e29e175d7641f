// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/internal/enum"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/nodename"
	"github.com/kubewright/kubewright/internal/optional"
	core "github.com/kubewright/kubewright/podsync/internal/pod"
)

// The defaults of Config and Policy.
const (
	// DefaultRelist is the time between two calls of List if the provider is not a
	// Watcher.
	DefaultRelist = 10 * time.Second
	// DefaultRelistWatched is the time between two calls of List if the provider
	// is a Watcher.
	DefaultRelistWatched = 2 * time.Minute
	// DefaultPendingAfter is the time that a status with little news waits for the
	// next status, so that one write is enough for both.
	DefaultPendingAfter = time.Second
	// DefaultMaxCalls is the number of concurrent calls of Start and Update, and
	// also of Stop and Release. Each call needs a goroutine, so this limits the number
	// of goroutines if the backend hangs.
	DefaultMaxCalls = 512
	// DefaultShutdownTimeout is the time for storing the final statuses that are
	// known when Run's context is done.
	DefaultShutdownTimeout = 5 * time.Second
	// DefaultOrphanDelay is the time that an instance must be without a pod before
	// the pod is read from the API.
	DefaultOrphanDelay = 30 * time.Second
	// DefaultMassHold is the time that many instances without pods keep running.
	DefaultMassHold = 10 * time.Minute
	// DefaultOfflineAfter is the time without an answer of the API server after which
	// the pods of the Checkpoint start.
	DefaultOfflineAfter = 30 * time.Second
	// DefaultName is the name of the controller in logs and health checks.
	DefaultName = "podsync"
)

const (
	// statusWriters is the number of concurrent status writes and deletions: 3,200 a second
	// if each takes 10 ms. A small kube-apiserver nearby gets no faster beyond eight, and one
	// node should not take all the seats that API priority and fairness gives to nodes.
	statusWriters = 32
	// retryMin is the delay after the first failure of a call, and retryMax the longest one.
	// It doubles with each failure, with jitter.
	retryMin = time.Second
	retryMax = 5 * time.Minute
	// callTimeout is the deadline of one API request, its retries inside client-go included.
	callTimeout = 10 * time.Second
	// slowCall is the time after which a call of the provider is said not to have returned:
	// more than most images take.
	slowCall = 5 * time.Minute
	// listTimeout is the deadline of a LIST of pods, which may be long, and of the
	// provider's List.
	listTimeout = 2 * time.Minute
	// horizon limits durations, so that sums of them do not overflow.
	horizon = core.Horizon
)

// A GateFunc returns nil if this process may act for a node. Otherwise it returns an
// error with the reason, for example that another process renews the node's lease.
//
// It is called before each provider call, each List and each request about a pod. While it
// returns an error, it is also called each second. It is called for several nodes at the same
// time, and not again for a node before it has returned. It must answer from memory, and return
// when ctx is done, which is 2.5 s after the call. A call that is late or panics closes the gate and is
// reported: see "Functions of a program" in docs/operations.md.
type GateFunc func(ctx context.Context, nodeName string) error

// Config configures a Controller. The zero value of every optional field means
// the default that its comment states.
type Config struct {
	// Required. Client writes the status of pods and deletes them.
	// clientset.CoreV1() is one. Its rate limit should be off (QPS -1), because the
	// default of client-go is five requests a second for all pods together.
	Client corev1client.PodsGetter
	// Required. Provider runs the pods. It may also implement [Updater], [Watcher],
	// [Inspector], [Releaser], [Admitter] and [Annotator].
	Provider Provider
	// Required, unless Owns or Fleet is set. NodeName is the node whose pods are
	// run.
	NodeName string

	// Informer delivers the pods. The program must run it. Its objects must be of type
	// *corev1.Pod, or *CompactPod with the transform [Compact]. With an Informer one
	// Controller can serve many nodes, see Owns and Fleet. Default: the Controller runs its own
	// informer, which selects spec.nodeName=NodeName on the server.
	Informer cache.SharedIndexInformer
	// Owns reports whether the Controller runs a pod of Informer. It must not
	// change the pod, and its result must not change during the pod's life. It is called when
	// the Informer shows a pod for the first time, by a handler of the Informer, and must
	// answer from memory. After a panic, which is reported, the pod is not taken until the
	// next List calls Owns again; that call may be made at the same time as one of a handler.
	// Default: the pods bound to NodeName; with Fleet, those bound to any node.
	Owns func(pod *corev1.Pod) bool
	// Fleet makes the Controller run all pods of Informer that are bound to a node.
	// Without it, New rejects an Informer with neither NodeName nor Owns, because the name
	// may come from an environment variable that is not set. Then one node would
	// run the pods of all nodes. Default: false.
	Fleet bool
	// Gate reports whether this process may act for a node. While it returns an
	// error, the Controller starts and stops nothing on the node and writes nothing
	// about its pods. When it returns nil again, the pods are reconciled with a new List.
	// If two processes may have one node name, they need a Gate, or each pod runs twice.
	// lease.Controller.Holds is one. Default: the process may always act.
	Gate GateFunc
	// Checkpoint stores the pods that this node has accepted and that have not ended. If
	// the API server can't be reached for OfflineAfter when Run begins, these pods are
	// started or adopted. When the API server is back, its pods count: a pod that was
	// deleted is stopped, and a pod that was changed is updated. Records of pods of another
	// node are reported, and neither used nor removed.
	//
	// While the API server is away, pods start only if Gate returns nil. With
	// lease.Controller.Holds no pod starts, because another process could hold the lease
	// by now. A program may be fenced in another way, for example by a lock on the only
	// machine that it can run on. Then its Gate can return nil while it holds that lock.
	//
	// Checkpoint needs the Controller's own informer. ConfigMaps and Secrets are not
	// stored; the provider must store them. Default: none, and no pod starts while the
	// API server is away.
	Checkpoint Checkpoint
	// OfflineAfter is the time without an answer of the API server, from the beginning of
	// Run, after which the pods of the Checkpoint start. The codes 502, 503 and 504 do not
	// count as answers. After a 401 or 403 these pods never start. A machine at the edge that
	// restarts without a network, as KubeEdge's do, needs a short time. Default: DefaultOfflineAfter.
	OfflineAfter time.Duration
	// Policy decides cases for which programs need different behavior. Default: the
	// zero Policy.
	Policy Policy

	// Relist is the time between two calls of List, plus or minus a tenth.
	// Default: DefaultRelistWatched for a Watcher, otherwise DefaultRelist.
	Relist time.Duration
	// PendingAfter is the time that a status waits for the next status, so that one write
	// is enough for both. The first status waits until the pod runs or a container is held
	// up, for example because its image can't be pulled, and the status of a
	// stopping pod waits until the pod has ended. A status in which only details have
	// changed, such as addresses and IDs, waits for any other. If PendingAfter is
	// negative, they do not wait. Default: DefaultPendingAfter.
	PendingAfter time.Duration
	// MaxCalls is the number of concurrent calls of Start and Update, and also of
	// Stop and Release. Set it for a backend that can't take the default, such as a batch
	// system, or to the NumWorkers that a program has set for virtual-kubelet. Default:
	// DefaultMaxCalls.
	MaxCalls int
	// ShutdownTimeout is the time that Run continues after its context is done, to
	// store final statuses. Default: DefaultShutdownTimeout.
	ShutdownTimeout time.Duration

	// Name is the name in logs and health checks. Default: DefaultName.
	Name string
	// ErrorHandler is called with errors that the controller recovers from. Repeats
	// of the same class are suppressed until a call succeeds;
	// [Hooks.ProviderCall] and [Hooks.APICall] get every error. It is called
	// synchronously, by several goroutines at a time, and must not block. Default: the
	// errors are logged with the logger of Run's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
	// EventRecorder records Warning events: see docs/operations.md.
	// Default: none.
	EventRecorder events.EventRecorder
	// ContainerEvents records two of the Normal events that a kubelet records about
	// containers, Started and Killing. The controller derives them from changes of container
	// statuses. Started has the image in its note, and stands for Pulled and Created, which
	// would be two more requests for the same fact. Create the recorder with the name
	// "kubelet", because other programs look for events of that source. Default: none.
	ContainerEvents events.EventRecorder
	// HostIPs returns the addresses of a node, the primary one first. They become
	// status.hostIP and hostIPs, unless the provider reports others. They also become podIP
	// and podIPs of a pod that uses the host's network. HostIPs is called before each
	// status write, for several pods at the same time, and must answer from memory. After a
	// panic, which is reported, the status is written without addresses. Default: none.
	HostIPs func(nodeName string) []string
	// Hooks observe calls, requests and stages. Default: none.
	Hooks Hooks
}

// Policy decides cases for which programs need different behavior. Its zero value is
// the cautious choice in each.
type Policy struct {
	// Lost decides about a pod that had started and that the provider no longer
	// holds. Default: LostByRestartPolicy.
	Lost LostPolicy
	// OrphanDelay is the time that List must have returned an instance without a pod
	// before the controller reads the pod from the API. Default: DefaultOrphanDelay.
	OrphanDelay time.Duration
	// ExclusiveBackend promises that every instance that List returns was started for
	// Config.NodeName. Then State.NodeName is not needed. Without either of them, an orphan
	// is stopped only if the API answers a GET of its pod with 404. If the client has the
	// credentials of a node, the answer is 403, and the orphan is kept and reported.
	// Default: false.
	ExclusiveBackend bool
	// CompleteList promises that a List without an error is always complete, as it is
	// if the provider keeps its pods only in its own memory. Then pods that the List leaves
	// out count as lost without waiting for MassHold, even if it leaves out all. Otherwise
	// the pods of such a provider would wait for MassHold after each restart. Default: false.
	CompleteList bool
	// MassHold delays the end of many pods at once. It applies if more than five pods and
	// more than a quarter of the provider's pods are affected, or if the provider has two
	// or more and all are affected. There are two cases:
	//
	// The API shows that pods are gone. Their instances are stopped when the API has shown
	// this for MassHold, because it may be a mistake, such as a wrong cluster or an API
	// server that was restored from a backup. It also applies to pods that were replaced by
	// pods with the same names, if the API server shows an older state than before. A new
	// process can't know the state before. Therefore it keeps all instances whose pods were
	// replaced, also if that was right and happened while no process ran.
	//
	// The provider's List leaves out pods. They count as lost when List has left them out
	// for MassHold, because a backend that fails may return an empty list. MassHold does
	// not apply to pods that an [Inspector] does not know, nor with CompleteList.
	//
	// [Hooks.MassOrphans] is called in the meantime. A new process begins to wait again; only
	// for pods that List leaves out does it continue, if there is a Checkpoint. If MassHold is
	// negative, the instances are never stopped and the pods never lost. Default:
	// DefaultMassHold.
	MassHold time.Duration
	// UpdateMetadata calls Update also after a change of labels or annotations. What
	// changed while no process ran, or while the gate was closed, is not known.
	// Default: only after a change of the spec.
	UpdateMetadata bool
	// TrustPhase takes the phase from State.Status.Phase if the provider sets it. It is
	// for providers that have no container statuses. Succeeded ends the pod well only if no report
	// has ever had a container status. Otherwise every container needs its exit code: one that was
	// last seen running ends with code 137, and the pod fails. Default: the phase is derived
	// from container statuses.
	TrustPhase bool
}

// A LostPolicy decides what happens to pods that the provider has lost.
type LostPolicy int

const (
	// LostByRestartPolicy starts a lost pod again if its restart policy is
	// Always, and fails it otherwise, because its progress is unknown.
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

// complete fills in the defaults and returns all invalid fields.
func (cfg *Config) complete() error {
	var problems []error
	if lifecycle.IsNil(cfg.Client) {
		problems = append(problems, field.Required(field.NewPath("Client"), "for example clientset.CoreV1()"))
	}
	if lifecycle.IsNil(cfg.Provider) {
		problems = append(problems, field.Required(field.NewPath("Provider"), "what runs the pods"))
	}
	problems = append(problems, optional.Check("Provider", cfg.Provider, optionalMethods)...)
	if cfg.NodeName == "" && (cfg.Informer == nil || cfg.Owns == nil && !cfg.Fleet) {
		problems = append(problems, field.Required(field.NewPath("NodeName"), "unless Informer is set, and Owns or Fleet says which of its pods are run"))
	}
	if cfg.Fleet && (cfg.NodeName != "" || cfg.Owns != nil) {
		problems = append(problems, field.Forbidden(field.NewPath("Fleet"), "with NodeName or Owns, which select pods"))
	}
	if cfg.Fleet && cfg.Informer == nil {
		problems = append(problems, field.Forbidden(field.NewPath("Fleet"), "needs Informer: the Controller's own shows the pods of NodeName only"))
	}
	problems = append(problems, nodename.Check("NodeName", cfg.NodeName)...)
	if cfg.Owns != nil && cfg.Informer == nil {
		problems = append(problems, field.Invalid(field.NewPath("Owns"), "func", "needs Informer: the Controller's own shows the pods of NodeName only"))
	}
	if cfg.Checkpoint != nil && cfg.Informer != nil {
		problems = append(problems, field.Forbidden(field.NewPath("Checkpoint"), "needs the Controller's own informer, which shows whether the API server can be reached"))
	}
	if cfg.Owns == nil {
		node, fleet := cfg.NodeName, cfg.Fleet
		cfg.Owns = func(pod *corev1.Pod) bool {
			return pod.Spec.NodeName != "" && (fleet || pod.Spec.NodeName == node)
		}
	}
	cfg.Policy.MassHold = min(cmp.Or(cfg.Policy.MassHold, DefaultMassHold), horizon)
	relist := DefaultRelist
	if _, ok := cfg.Provider.(Watcher); ok {
		relist = DefaultRelistWatched
	}
	cfg.PendingAfter = min(max(cmp.Or(cfg.PendingAfter, DefaultPendingAfter), 0), horizon)
	cfg.Name = cmp.Or(cfg.Name, DefaultName)
	const ms = time.Millisecond
	for _, d := range []struct {
		name     string
		value    *time.Duration
		def, min time.Duration
	}{
		{"Relist", &cfg.Relist, relist, 100 * ms},
		{"OfflineAfter", &cfg.OfflineAfter, DefaultOfflineAfter, ms},
		{"ShutdownTimeout", &cfg.ShutdownTimeout, DefaultShutdownTimeout, ms},
		{"Policy.OrphanDelay", &cfg.Policy.OrphanDelay, DefaultOrphanDelay, ms},
	} {
		problems = append(problems, lifecycle.DefaultDuration(d.name, d.value, d.def, d.min)...)
		*d.value = min(*d.value, horizon)
	}
	problems = append(problems, lifecycle.DefaultInt("MaxCalls", &cfg.MaxCalls, DefaultMaxCalls, 1)...)
	problems = append(problems, enum.Check("Policy.Lost", cfg.Policy.Lost, LostRestart)...)
	return lifecycle.InvalidConfig("podsync", problems)
}

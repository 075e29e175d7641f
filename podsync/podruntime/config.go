// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"net"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/optional"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// The defaults of Config.
const (
	// DefaultRelist is the time between two lists of a Runtime that is not a Watcher.
	DefaultRelist = time.Second
	// DefaultRelistWatched is the time between two lists of a Watcher.
	DefaultRelistWatched = time.Minute
	// DefaultMaxStarts is the number of containers and sandboxes that are started at
	// once.
	DefaultMaxStarts = 32
)

// callTimeout is the deadline of a call of the Runtime that does not wait for a container, such
// as List and Remove. That of Stop begins when the container is to be killed. Start and SetUpPod
// have none.
const callTimeout = 2 * time.Minute

// Config configures a Provider. The zero value of every optional field means the
// default that its comment states.
type Config struct {
	// Required. Runtime runs the containers.
	Runtime Runtime
	// Required. Root is the absolute path of a directory for pods, volumes and
	// records. It is created. Only one process at a time may use it: Run of a second one
	// returns ErrRootInUse. Only its owner can read it, because it may contain Secrets.
	Root string
	// Required. Environment resolves environment variables and volumes.
	Environment *podenv.Resolver
	// Required. HostIPs are the addresses of the node, the primary one first, and at most one of each
	// IP family. They
	// are also the addresses of pods that use the host's network, and of all pods if
	// the Runtime is not a Sandboxer.
	HostIPs []string

	// Allocatable returns the resources that all pods together may request. A pod that
	// exceeds them is not admitted, and a resize that does must wait. It is called at any
	// time, from any goroutine, and must answer from memory. Default: no limit.
	Allocatable func() corev1.ResourceList
	// Node returns the Node as this process saw it last, or nil if it is not known
	// yet. A pod is rejected if its node selector or required node affinity does not
	// match the Node's labels, or if it does not tolerate a NoExecute taint. Admit
	// calls it, for one pod at a time, and it must answer from memory. Default: labels and
	// taints are not compared.
	Node func() *corev1.Node
	// ReadNode reads the Node from the API. Admit calls it, for one pod at a time, before it
	// rejects a pod because of labels or taints. It must return when ctx is done, which is
	// after ten seconds at most. After an error Admit is called again. Default: the result of Node is used.
	ReadNode func(ctx context.Context) (*corev1.Node, error)
	// Evict stops a pod that exceeds the size limit of an emptyDir volume or its limit
	// of ephemeral storage. Use Evict of the podsync.Controller. It is called for one pod at
	// a time, and must not block. After an error, which is reported, it is called again when
	// the pod has been measured again. Default: these limits
	// are not enforced on disks.
	Evict func(ref podsync.Ref, eviction podsync.Eviction) error
	// Pod returns the newest version of a pod, or nil. It is needed for labels and
	// annotations, because Update may not be called when they change. Volumes with
	// labels and annotations follow changes, and each start of a container uses the newest
	// values. It is called for several pods at the same time, and must answer from memory.
	// Default: the version of the last call of Start or Update.
	Pod func(ref podsync.Ref) *corev1.Pod
	// GRPC runs gRPC probes. Default: none, and pods with such probes are rejected.
	GRPC GRPCProber
	// DNS has the addresses and the domain of the cluster's DNS service, and the
	// node's own configuration. It is used if the Runtime is a Sandboxer. Default:
	// pods have an empty resolv.conf.
	DNS ClusterDNS
	// Backoff delays restarts of containers. Default: the kubelet's constants.
	Backoff Backoff
	// Relist is the time between two lists of all containers. Default:
	// DefaultRelistWatched if the Runtime is a Watcher, otherwise DefaultRelist.
	Relist time.Duration
	// Volumes mounts volumes of kinds that the package comment does not list. The keys
	// are the names of the volume sources in the API, for example "persistentVolumeClaim",
	// "csi", "nfs" or "image". Without a plugin, a pod with such a volume waits, with an
	// event FailedMount. A program can reject such pods with a [Checker]. A provider that
	// mounts the storage of its cloud needs it, as virtual-kubelet's azure-aci does with
	// "azureFile". Default: none.
	Volumes map[string]VolumePlugin
	// Sealer encrypts the Secrets and tokens that containers have read, so that they can be
	// stored in the file inputs.json of their pod. Then the containers can start again in the
	// next process while the API server can't be reached. ConfigMaps and Services are stored
	// without it. Without Sealer, a container with a variable from a Secret waits until the
	// API server is back. So does a pod whose Secrets or tokens were in a tmpfs when the
	// machine was restarted. A machine with a TPM can keep the key there, as systemd-creds
	// does. Users of edge nodes ask for that (kubeedge#4272). Default: none.
	Sealer podenv.Sealer
	// MaxStarts is the largest number of containers and sandboxes that are being started
	// at once. Containers of pods that have a sandbox come first, and then the oldest pods.
	// One for each CPU can be faster on a small or crowded machine, as in
	// https://github.com/kubernetes/kubernetes/issues/3312. Default: DefaultMaxStarts.
	MaxStarts int
	// EventRecorder records failures of pods and containers, and restarts because of a
	// probe or a changed spec. Starts and ends are recorded by
	// podsync.Config.ContainerEvents. Default: none.
	EventRecorder events.EventRecorder
}

// complete fills in the defaults and returns all problems.
func (cfg *Config) complete() error {
	var problems []error
	if lifecycle.IsNil(cfg.Runtime) {
		problems = append(problems, field.Required(field.NewPath("Runtime"), "it runs the containers"))
	}
	problems = append(problems, optional.Check("Runtime", cfg.Runtime, optionalMethods)...)
	if !filepath.IsAbs(cfg.Root) {
		problems = append(problems, field.Invalid(field.NewPath("Root"), cfg.Root, "must be an absolute path"))
	}
	if cfg.Environment == nil {
		problems = append(problems, field.Required(field.NewPath("Environment"), "see podenv.New"))
	}
	if len(cfg.HostIPs) == 0 {
		problems = append(problems, field.Required(field.NewPath("HostIPs"), "the addresses of the node"))
	}
	families := map[bool]bool{}
	for i, ip := range cfg.HostIPs {
		address := net.ParseIP(ip)
		isV4 := address.To4() != nil
		switch at := field.NewPath("HostIPs").Index(i); {
		case address == nil:
			problems = append(problems, field.Invalid(at, ip, "must be an IP address"))
		case families[isV4]: // the API server would refuse each status
			problems = append(problems, field.Invalid(at, ip, "must be the only address of its IP family"))
		default:
			families[isV4] = true
		}
	}
	relist := DefaultRelist
	if _, ok := cfg.Runtime.(Watcher); ok {
		relist = DefaultRelistWatched
	}
	problems = append(problems, lifecycle.DefaultDuration("Relist", &cfg.Relist, relist, 10*time.Millisecond)...)
	problems = append(problems, lifecycle.DefaultInt("MaxStarts", &cfg.MaxStarts, DefaultMaxStarts, 1)...)
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"Backoff.Initial", cfg.Backoff.Initial}, {"Backoff.Max", cfg.Backoff.Max}, {"Backoff.Reset", cfg.Backoff.Reset}} {
		if d.value < 0 {
			problems = append(problems, field.Invalid(field.NewPath(d.name), d.value.String(), "must not be negative"))
		}
	}
	cfg.Backoff = cfg.Backoff.withDefaults()
	return lifecycle.InvalidConfig("podruntime", problems)
}

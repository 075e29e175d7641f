// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
)

// The defaults of Config.
const (
	// DefaultRelist is the time between two lists of a Runtime that is no Watcher.
	DefaultRelist = time.Second
	// DefaultRelistWatched is the time between two lists of a Watcher.
	DefaultRelistWatched = time.Minute
	// DefaultVolumeRefresh is the time between two reads of the ConfigMaps, Secrets
	// and pod fields in volumes.
	DefaultVolumeRefresh = time.Minute
	// DefaultDiskInterval is the time between two measurements of disk usage.
	DefaultDiskInterval = 10 * time.Second
	// DefaultMaxStarts is the number of containers and sandboxes that are started at
	// once.
	DefaultMaxStarts = 32
	// DefaultCallTimeout is the deadline of one call of List, Remove and the other
	// calls of the Runtime that do not wait for a container.
	DefaultCallTimeout = 2 * time.Minute
)

// Config configures a Provider. The zero value of every optional field means the
// default that its comment states.
type Config struct {
	// Required. Runtime runs the containers.
	Runtime Runtime
	// Required. Root is the absolute path of a directory for pods, volumes and
	// records. It is created. One process at a time may use it, and Run of a second
	// one returns ErrRootInUse. It holds Secrets, so only its owner can read it.
	Root string
	// Required. Environment resolves environment variables and volumes.
	Environment *podenv.Resolver
	// Required. HostIPs are the addresses of the node, the primary one first. They
	// are also those of pods in the network of the host, and of all pods if the
	// Runtime is no Sandboxer.
	HostIPs []string

	// Allocatable returns the resources that all pods together may request, at
	// admission and after a resize. It is called at any time, from any goroutine.
	// Default: pods are not counted.
	Allocatable func() corev1.ResourceList
	// Node returns the Node as this process saw it last, or nil if it is not known
	// yet. A pod is rejected if its node selector or required node affinity does not
	// match the labels, or if it does not tolerate a NoExecute taint. Default:
	// neither is compared.
	Node func() *corev1.Node
	// ReadNode reads the Node from the API. Admit calls it before it rejects a pod for
	// labels or taints. Default: Node returns the current version.
	ReadNode func(ctx context.Context) (*corev1.Node, error)
	// Evict ends a pod that exceeds the size limit of an emptyDir volume or its limit
	// of ephemeral storage: it is Evict of the podsync.Controller. Default: these
	// limits are not enforced on disks.
	Evict func(ref podsync.Ref, eviction podsync.Eviction) error
	// DiskInterval is the time between two measurements of disk usage. It is longer if
	// the measurements take more than a tenth of the time. Default:
	// DefaultDiskInterval.
	DiskInterval time.Duration
	// Pod returns the newest version of a pod, or nil. Labels and annotations
	// change without an Update; volumes with them follow, and so does the environment of
	// each start. Default: the version that was handed over last.
	Pod func(ref podsync.Ref) *corev1.Pod
	// GRPC runs gRPC probes. Default: none, and pods that have them are rejected.
	GRPC GRPCProber
	// DNS has the addresses and the domain of the cluster's DNS service, and the
	// node's own configuration. It is used if the Runtime is a Sandboxer. Default:
	// pods have an empty resolv.conf.
	DNS ClusterDNS
	// Backoff holds back restarts of containers. Default: the kubelet's constants.
	Backoff Backoff
	// Relist is the time between two lists of all containers. Default:
	// DefaultRelistWatched if the Runtime is a Watcher, else DefaultRelist.
	Relist time.Duration
	// VolumeRefresh is the time between two reads of volumes with data from the
	// API; volumes with tokens are read when a token must be renewed. Default:
	// DefaultVolumeRefresh.
	VolumeRefresh time.Duration
	// Volumes mounts the volumes of other kinds than those of the package comment, by the name
	// of their source in the API: "persistentVolumeClaim", "csi", "nfs" or "image", for example.
	// Default: none. A pod with a volume of such a kind waits with an event FailedMount; a
	// program that would rather reject it does that with a [Checker].
	Volumes map[string]VolumePlugin
	// Sealer encrypts the Secrets and tokens that containers have read for inputs.json in the
	// directory of their pod, so that they can start again in the next process while the API
	// server can't be reached. Default: none; ConfigMaps and Services are on disk, and a
	// container with a variable of a Secret waits for the API server then, as does a pod whose
	// Secrets or tokens were in memory when the machine was restarted.
	Sealer podenv.Sealer
	// MaxStarts is the number of containers and sandboxes that are started at once:
	// the containers of pods that have a sandbox go first, and then the oldest pods.
	// Default: DefaultMaxStarts.
	MaxStarts int
	// CallTimeout is the deadline of a call of the Runtime that does not wait for
	// a container. Start, SetUpPod and Stop have none of their own. Default:
	// DefaultCallTimeout.
	CallTimeout time.Duration
	// EventRecorder records failures of pods and containers, and restarts for a
	// probe or a change of the specification. Starts and ends are recorded by
	// podsync.Config.ContainerEvents. Default: none.
	EventRecorder events.EventRecorder
}

// complete fills in the defaults and returns all problems.
func (cfg *Config) complete() error {
	var problems field.ErrorList
	if lifecycle.IsNil(cfg.Runtime) {
		problems = append(problems, field.Required(field.NewPath("Runtime"), "it runs the containers"))
	}
	if !filepath.IsAbs(cfg.Root) {
		problems = append(problems, field.Invalid(field.NewPath("Root"), cfg.Root, "must be an absolute path"))
	}
	if cfg.Environment == nil {
		problems = append(problems, field.Required(field.NewPath("Environment"), "see podenv.New"))
	}
	if len(cfg.HostIPs) == 0 {
		problems = append(problems, field.Required(field.NewPath("HostIPs"), "the addresses of the node"))
	}
	relist := DefaultRelist
	if _, ok := cfg.Runtime.(Watcher); ok {
		relist = DefaultRelistWatched
	}
	problems = append(problems, lifecycle.DefaultDuration("Relist", &cfg.Relist, relist, 10*time.Millisecond)...)
	problems = append(problems, lifecycle.DefaultDuration("VolumeRefresh", &cfg.VolumeRefresh, DefaultVolumeRefresh, 10*time.Millisecond)...)
	problems = append(problems, lifecycle.DefaultDuration("DiskInterval", &cfg.DiskInterval, DefaultDiskInterval, 10*time.Millisecond)...)
	problems = append(problems, lifecycle.DefaultDuration("CallTimeout", &cfg.CallTimeout, DefaultCallTimeout, time.Millisecond)...)
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

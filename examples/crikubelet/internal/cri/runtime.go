// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	nodev1client "k8s.io/client-go/kubernetes/typed/node/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/internal/cgroups"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// The labels of sandboxes and containers. Tools for nodes such as crictl know those
// that begin with io.kubernetes.
const (
	labelNode      = "dev.kubewright.node"
	labelNamespace = "io.kubernetes.pod.namespace"
	labelPod       = "io.kubernetes.pod.name"
	labelUID       = "io.kubernetes.pod.uid"
	labelContainer = "io.kubernetes.container.name"
)

// Config configures a Runtime.
type Config struct {
	// Required. Endpoint is the socket of the runtime: unix:///path.
	Endpoint string
	// Required. Node is the name of the node, which everything is labelled with.
	Node string
	// Required. LogDir is the directory of the logs. The runtime writes to it.
	LogDir string
	// Required. PullDir is the directory of records about images that were pulled with
	// credentials.
	PullDir string
	// Required. Secrets reads the image pull secrets of pods.
	Secrets corev1client.SecretsGetter
	// Required. RuntimeClasses reads the runtime classes of pods.
	RuntimeClasses nodev1client.RuntimeClassesGetter
	// CgroupParent is the cgroup of all pods, in the notation of the runtime's
	// cgroup driver. In a path each pod has a cgroup with the limits of the pod, but
	// not in a slice of systemd. Default: that of the runtime.
	CgroupParent string
	// Cgroups is the directory at which cgroups are mounted. Default: cgroups.Kernel.
	Cgroups cgroups.Tree
	// SeccompDir is the directory of the seccomp profiles of type Localhost.
	SeccompDir string
	// Required. Claims prepares the devices of resource claims.
	Claims *podruntime.Claims
	// Memory is the memory of the machine in bytes, for OOM scores.
	Memory int64
	// Sysctls are the sysctls that pods may set although they are not namespaced
	// safely; a name may end in *.
	Sysctls []string
	// Poll is the time between two lists of all containers if the runtime reports
	// no events. Default: DefaultPoll.
	Poll time.Duration
	// MaxPulls is the number of images that are pulled at once. A namespace gets another place
	// only while more are free than it has, so one alone has half. Default: DefaultMaxPulls.
	MaxPulls int
	// PullTimeout is the time that an image may take, with all credentials of the pod. The
	// runtime may lose what it has of an image that takes longer. Default: DefaultPullTimeout.
	PullTimeout time.Duration
}

// The defaults of Config.
const (
	DefaultPoll        = 500 * time.Millisecond
	DefaultMaxPulls    = 4
	DefaultPullTimeout = time.Hour
)

// A Runtime is a podruntime.Runtime with the optional interfaces that a CRI runtime
// has. Make it with New.
type Runtime struct {
	cfg    Config
	conn   *grpc.ClientConn
	client runtimeapi.RuntimeServiceClient
	images runtimeapi.ImageServiceClient
	pulls  *pullPlaces

	pulledImages pulledImages
	follow       runningList
	patience     time.Duration // listPatience, but in tests

	mu       sync.Mutex
	version  string                                  // the last answer of Version
	statuses map[string]*runtimeapi.ContainerStatus  // of containers, by ID: see containerStatus
	boxes    map[string]*runtimeapi.PodSandboxStatus // of ready sandboxes, by ID
}

var _ interface {
	podruntime.Runtime
	podruntime.Watcher
	podruntime.Execer
	podruntime.LogTailer
	podruntime.Puller
	podruntime.Sandboxer
	podruntime.PodResizer
	podruntime.Checker
} = (*Runtime)(nil)

// maxMessage is the size of the largest answer that is read: a list of a thousand
// containers with their labels.
const maxMessage = 16 << 20

// New returns a Runtime. It connects when the first call is made, and again after
// the runtime was away.
func New(cfg Config) (*Runtime, error) {
	if !strings.HasPrefix(cfg.Endpoint, "unix:///") {
		return nil, fmt.Errorf("the endpoint %q is not of the form unix:///path", cfg.Endpoint)
	}
	if cfg.Poll <= 0 {
		cfg.Poll = DefaultPoll
	}
	cfg.Cgroups = cmp.Or(cfg.Cgroups, cgroups.Kernel)
	if cfg.MaxPulls <= 0 {
		cfg.MaxPulls = DefaultMaxPulls
	}
	if cfg.PullTimeout <= 0 {
		cfg.PullTimeout = DefaultPullTimeout
	}
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = 100*time.Millisecond, 3*time.Second
	conn, err := grpc.NewClient(cfg.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)), grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: 5 * time.Second}), grpc.WithUnaryInterceptor(bounded))
	if err != nil {
		return nil, err
	}
	return &Runtime{
		pulledImages: pulledImages{dir: cfg.PullDir, pulling: map[string]int{}}, patience: listPatience,
		cfg: cfg, conn: conn, client: runtimeapi.NewRuntimeServiceClient(conn), images: runtimeapi.NewImageServiceClient(conn),
		pulls: newPullPlaces(cfg.MaxPulls), statuses: map[string]*runtimeapi.ContainerStatus{}, boxes: map[string]*runtimeapi.PodSandboxStatus{},
	}, nil
}

// callTimeout is the time after which a runtime that does not answer a call has failed, as
// with the kubelet.
const callTimeout = 2 * time.Minute

// bounded gives a call its deadline: a shim or a network plugin that hangs must not keep a
// place of a start, or hold up the containers after its own in a loop. Pulls and commands
// have theirs already.
func bounded(ctx context.Context, method string, req, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	timeout := callTimeout
	switch req := req.(type) {
	case *runtimeapi.PullImageRequest, *runtimeapi.ExecSyncRequest:
		return invoke(ctx, method, req, answer, conn, opts...)
	case *runtimeapi.RunPodSandboxRequest:
		timeout *= 2
	case *runtimeapi.StopContainerRequest:
		timeout += time.Duration(req.Timeout) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return invoke(ctx, method, req, answer, conn, opts...)
}

// Close closes the connection. Containers run on.
func (r *Runtime) Close() { _ = r.conn.Close() }

// Version returns the name and the version of the runtime, such as
// containerd://1.6.20.
func (r *Runtime) Version(ctx context.Context) (string, error) {
	v, err := r.client.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version = v.RuntimeName + "://" + v.RuntimeVersion
	return r.version, nil
}

// scheme returns the scheme of container IDs in statuses: the name of the runtime.
func (r *Runtime) scheme(ctx context.Context) (string, error) {
	version, err := r.lastVersion(), error(nil)
	if version == "" {
		version, err = r.Version(ctx)
	}
	name, _, _ := strings.Cut(version, "://")
	return name + "://", err
}

// lastVersion returns the last answer of Version, or nothing.
func (r *Runtime) lastVersion() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version
}

// sandboxImage returns the image of sandboxes, which no container has, or nothing. containerd
// before 1.7.3 does not pin it, and has its name in the details for people.
func (r *Runtime) sandboxImage(ctx context.Context) (string, error) {
	answer, err := r.client.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return "", err
	}
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	// A runtime may have no details, or others.
	_ = json.Unmarshal([]byte(answer.Info["config"]), &config)
	return config.SandboxImage, nil
}

// Ready returns an error that says why no pod can run, or nil.
func (r *Runtime) Ready(ctx context.Context) error {
	s, err := r.client.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return err
	}
	var problems []error
	for _, c := range s.GetStatus().GetConditions() {
		if !c.Status && (c.Type == runtimeapi.RuntimeReady || c.Type == runtimeapi.NetworkReady) {
			problems = append(problems, fmt.Errorf("%s is false: %s: %s", c.Type, c.Reason, c.Message))
		}
	}
	return errors.Join(problems...)
}

// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package leaderelection has the exported API of csi-lib-utils/leaderelection on top of
// package election, so that a sidecar changes one import.
//
// A lost lease ends the process at once, as there. A lease is given away when the work
// has returned, also without WithReleaseOnCancel. Labels are those of a Lease that this
// replica creates. The time of the health check has no effect: the check fails if the
// work goes on although its context is cancelled, and not if the API server is down.
package leaderelection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/standardflags"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/election"
)

const (
	// DefaultHealthCheckTimeout has no effect.
	DefaultHealthCheckTimeout = 20 * time.Second
	// HealthCheckerAddress is the path of the health check.
	HealthCheckerAddress = "/healthz/leader-election"
)

// Server can serve the health check, like an http.ServeMux.
type Server interface {
	Handle(pattern string, handler http.Handler)
}

type leaderElection struct {
	clientset kubernetes.Interface
	lockName  string
	run       func(context.Context)

	identity, namespace string
	timing              election.Timing
	labels              map[string]string
	ctx                 context.Context
	candidate           *election.Candidate
	started             chan struct{} // closed when candidate is set
}

// NewLeaderElection returns an election for the Lease lockName. The leader calls runFunc.
func NewLeaderElection(clientset kubernetes.Interface, lockName string, runFunc func(ctx context.Context)) *leaderElection {
	return NewLeaderElectionWithLeases(clientset, lockName, runFunc)
}

// NewLeaderElectionWithLeases is NewLeaderElection.
func NewLeaderElectionWithLeases(clientset kubernetes.Interface, lockName string, runFunc func(ctx context.Context)) *leaderElection {
	return &leaderElection{
		clientset: clientset, lockName: lockName, run: runFunc, ctx: context.Background(), started: make(chan struct{}),
		timing: election.Timing{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RenewInterval: 5 * time.Second},
	}
}

// WithIdentity sets the identity. Default: the host name, which is that of the Pod.
func (l *leaderElection) WithIdentity(identity string) { l.identity = identity }

// WithNamespace sets the namespace of the Lease. Default: that of the Pod.
func (l *leaderElection) WithNamespace(namespace string) { l.namespace = namespace }

// WithLeaseDuration sets Timing.LeaseDuration. Default: 15 s.
func (l *leaderElection) WithLeaseDuration(d time.Duration) { l.timing.LeaseDuration = d }

// WithRenewDeadline sets Timing.RenewDeadline. Default: 10 s.
func (l *leaderElection) WithRenewDeadline(d time.Duration) { l.timing.RenewDeadline = d }

// WithRetryPeriod sets Timing.RenewInterval. Default: 5 s.
func (l *leaderElection) WithRetryPeriod(d time.Duration) { l.timing.RenewInterval = d }

// WithReleaseOnCancel has no effect: the lease is always released after the work.
func (l *leaderElection) WithReleaseOnCancel(bool) {}

// WithLabels sets the labels of a Lease that this replica creates.
func (l *leaderElection) WithLabels(labels map[string]string) { l.labels = labels }

// WithContext sets the context that ends Run. Default: none.
func (l *leaderElection) WithContext(ctx context.Context) { l.ctx = ctx }

// PrepareHealthCheck serves the health check at HealthCheckerAddress. Before Run the
// check succeeds.
func (l *leaderElection) PrepareHealthCheck(s Server, _ time.Duration) {
	s.Handle(HealthCheckerAddress, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-l.started:
			if err := l.candidate.Check(r); err != nil {
				http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
				return
			}
		default: // the Candidate does not exist yet
		}
		fmt.Fprint(w, "ok")
	}))
}

// Run stands for election, and ends the process when the lease is lost. It returns when
// its context is done, after the work has returned and the lease was released.
func (l *leaderElection) Run() error {
	identity := l.identity
	if identity == "" {
		var err error
		if identity, err = os.Hostname(); err != nil {
			return fmt.Errorf("error getting the default leader identity: %w", err)
		}
	}
	logger := klog.FromContext(l.ctx)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: l.clientset.EventsV1()})
	defer broadcaster.Shutdown()
	recording, stop := context.WithCancel(context.WithoutCancel(l.ctx))
	defer stop()
	if err := broadcaster.StartRecordingToSinkWithContext(recording); err != nil {
		return err
	}
	exit := func(err error) {
		logger.Error(err, "Stopped leading")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
	candidate, err := election.New(election.Config{
		Client: l.clientset.CoordinationV1(),
		Lease:  types.NamespacedName{Namespace: cmp.Or(l.namespace, podNamespace()), Name: sanitize(l.lockName)},
		Self:   election.Peer{Identity: sanitize(identity)},
		Timing: l.timing,
		Labels: l.labels,
		Lead: func(ctx context.Context, _ election.Term) error {
			l.run(ctx)
			<-ctx.Done() // work that has returned keeps the lease
			if cause := context.Cause(ctx); errors.Is(cause, election.ErrLost) || errors.Is(cause, election.ErrExpired) {
				exit(cause)
			}
			return nil
		},
		OnOverrun:     exit, // the work does not return
		EventRecorder: broadcaster.NewRecorder(nil, l.lockName+"/"+identity),
	})
	if err != nil {
		return err
	}
	l.candidate = candidate
	close(l.started)
	return candidate.Run(l.ctx)
}

// RunWithLeaderElection calls run, in the leader only if the flags say so.
func RunWithLeaderElection(ctx context.Context, config *rest.Config, opts standardflags.SidecarConfiguration, run func(context.Context), driverName string, mux *http.ServeMux, releaseOnExit bool) {
	if !opts.LeaderElection {
		run(ctx)
		return
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err == nil {
		l := NewLeaderElection(clientset, driverName, run)
		if opts.HttpEndpoint != "" {
			l.PrepareHealthCheck(mux, DefaultHealthCheckTimeout)
		}
		l.namespace, l.labels = opts.LeaderElectionNamespace, opts.LeaderElectionLabels
		l.timing = election.Timing{
			LeaseDuration: opts.LeaderElectionLeaseDuration, RenewDeadline: opts.LeaderElectionRenewDeadline, RenewInterval: opts.LeaderElectionRetryPeriod,
		}
		if releaseOnExit {
			l.ctx = ctx
		}
		err = l.Run()
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Leader election failed")
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

var notInNames = regexp.MustCompile("[^a-zA-Z0-9-]")

// sanitize returns a name as csi-lib-utils writes it, so that replicas of both compete
// for one Lease.
func sanitize(name string) string {
	name = notInNames.ReplaceAllString(name, "-")
	if strings.HasSuffix(name, "-") {
		name += "X"
	}
	return name
}

// podNamespace returns the namespace of the Pod, or "default".
func podNamespace() string {
	if name := os.Getenv("POD_NAMESPACE"); name != "" {
		return name
	}
	data, _ := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	return cmp.Or(strings.TrimSpace(string(data)), "default")
}

// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Leader runs as several instances, of which one works. Each is a candidate of package
// election. The lease guards the work, and the token of the term fences it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/examples/prometheus/metrics"
)

func main() { start(run) }

// options are the command line flags.
type options struct {
	lease, configMap types.NamespacedName
	self             election.Peer
	candidates       bool
	timing           election.Timing
	interval         time.Duration
	probes           probes
}

func (o *options) add(flags *flags) {
	hostname, _ := os.Hostname() // an empty identity is rejected later, by name
	o.lease = types.NamespacedName{Namespace: "kubewright", Name: "example"}
	o.configMap = o.lease
	flags.Func("lease", "`NAMESPACE/NAME` of the Lease (default "+o.lease.String()+")", named(&o.lease))
	flags.Func("config-map", "`NAMESPACE/NAME` of the ConfigMap in which the leader counts (default "+o.configMap.String()+")", named(&o.configMap))
	flags.StringVar(&o.self.Identity, "identity", hostname, "unique `name` of this candidate")
	flags.StringVar(&o.self.BinaryVersion, "version", "1.0.0", "semantic `version` of this candidate: among equal priorities the oldest leads")
	flags.Func("priority", "a `number`; the candidate with the highest priority leads; only without --lease-candidates (default 0)", func(s string) error {
		priority, err := strconv.ParseInt(s, 10, 32)
		o.self.Priority = int32(priority)
		return err
	})
	flags.BoolVar(&o.candidates, "lease-candidates", false, "create a LeaseCandidate, and let the API server or examples/coordinator elect")
	flags.DurationVar(&o.timing.LeaseDuration, "lease-duration", election.DefaultLeaseDuration, "`time` after the last renewal until another candidate takes over; whole seconds")
	flags.DurationVar(&o.timing.MinTenure, "min-tenure", election.DefaultMinTenure, "`time` for which a leader leads before it looks for a better candidate")
	flags.StringVar(&o.probes.address, "probe-address", "", "`address` that answers the probes of a Pod at /healthz and /readyz, and /metrics, such as :8081; none by default")
	flags.DurationVar(&o.interval, "interval", time.Second, "`time` between two counts")
}

// named parses NAMESPACE/NAME.
func named(name *types.NamespacedName) func(string) error {
	return func(s string) error {
		namespace, rest, found := strings.Cut(s, "/")
		if !found {
			return errors.New("want NAMESPACE/NAME")
		}
		*name = types.NamespacedName{Namespace: namespace, Name: rest}
		return nil
	}
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	var o options
	flags := newFlags("leader")
	o.add(flags)
	if err := flags.parse(args); err != nil {
		return err
	}
	cfg, err := flags.config()
	if err != nil {
		return err
	}
	// Renewals use their own connection, so that no request of the work delays
	// them.
	renewals, err := heartbeats(cfg)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}

	out := &printer{stdout}
	registry := prometheus.NewRegistry()
	hooks, err := metrics.Election(registry, o.lease.String(), election.Hooks{
		LeaderChanged: func(c election.LeaderChanged) { out.printf("leader: %q", c.To) },
		Offered:       func(o election.Offered) { out.printf("offered the lease to %s", o.To) },
		TermEnded: func(e election.TermEnded) {
			out.printf("term %d ended after %v: %v", e.Token, e.Duration.Round(time.Millisecond), e.Cause)
		},
	})
	if err != nil {
		return err
	}
	config := election.Config{
		Client:   renewals.CoordinationV1(),
		Lease:    o.lease,
		Self:     o.self,
		Strategy: election.HighestPriority(election.OldestEmulationVersion()),
		Timing:   o.timing,
		Lead: func(ctx context.Context, term election.Term) error {
			return lead(ctx, &counter{
				client: client.CoreV1().ConfigMaps(o.configMap.Namespace), name: o.configMap.Name,
				by: o.self.Identity, term: term,
			}, o.interval, out)
		},
		OnOverrun: func(err error) {
			// Two processes must not count at the same time.
			out.printf("exits: %v", err)
			os.Exit(1)
		},
		Hooks: hooks,
	}
	if o.candidates {
		// The only strategy that the API server implements.
		config.Strategy = election.OldestEmulationVersion()
		config.Registry = election.LeaseCandidates(renewals.CoordinationV1beta1())
	}
	candidate, err := election.New(config)
	if err != nil {
		return err
	}
	if err := metrics.Health(registry, candidate); err != nil {
		return err
	}
	o.probes.parts, o.probes.metrics = []part{candidate}, metrics.Handler(registry)
	return o.probes.during(ctx, candidate.Run)
}

// printer prints lines with the time, because an election is about time.
type printer struct{ w io.Writer }

func (p *printer) printf(format string, args ...any) {
	fmt.Fprintf(p.w, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05.000")}, args...)...)
}

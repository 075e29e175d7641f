// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Allinone is a custom kubelet that uses all six packages. Two replicas of it,
// as processes, manage one virtual node. One is active; the other stands by and
// takes over if the first ends, is killed, hangs or is disconnected. The pods
// run in a cloud, which is a third process (allinone cloud), and continue in
// the meantime.
//
// To try it, start a control plane with
//
//	make demo KEEP=1
//
// set KUBECONFIG as it prints, and use three terminals:
//
//	go run ./examples/allinone cloud
//	go run ./examples/allinone --node-name=v1 --identity=a --config-dir=/tmp/allinone-a
//	go run ./examples/allinone --node-name=v1 --identity=b --config-dir=/tmp/allinone-b
//
// README.md has the next steps.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/configcheckpoint"
	configkube "github.com/kubewright/kubewright/configcheckpoint/kube"
	"github.com/kubewright/kubewright/election"
	"github.com/kubewright/kubewright/examples/internal/kube"
)

func main() { kube.Main(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) > 0 && args[0] == "cloud" {
		return runCloud(ctx, args[1:], stdout)
	}
	return runReplica(ctx, args, stdout)
}

// cloudAddress is the default address of the cloud.
const cloudAddress = "127.0.0.1:7070"

// runCloud serves the cloud until ctx is done, which ends its pods.
func runCloud(ctx context.Context, args []string, stdout io.Writer) error {
	flags := kube.Flags{FlagSet: flag.NewFlagSet("allinone cloud", flag.ContinueOnError)}
	listen := flags.String("listen", cloudAddress, "`address` to listen on; it has no access control")
	runFor := flags.Duration("pod-duration", 10*time.Second, "`time` after which pods end that must not be restarted, such as a Job's")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "cloud: http://%s\n", listener.Addr())
	server := &http.Server{Handler: newCloud(*runFor).Handler(), ReadTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// options are the flags of a replica.
type options struct {
	*kube.Flags
	nodeName, identity, lease, cloud string
	nodeCredentials                  bool
	electionKubeconfig               string
	configMap, configDir             string
	configSoak                       time.Duration
	leaseDuration, syncInterval      time.Duration
}

func parse(args []string) (*options, error) {
	o := &options{Flags: kube.NewFlags("allinone")}
	nodeName := o.NodeName()
	hostname, _ := os.Hostname() // an empty identity is rejected later, by name
	o.StringVar(&o.identity, "identity", hostname, "unique `name` of this replica")
	o.StringVar(&o.lease, "lease", "kubewright/example", "`NAMESPACE/NAME` of the Lease that elects the active replica")
	o.DurationVar(&o.leaseDuration, "lease-duration", election.DefaultLeaseDuration, "how long after the last sign of the active replica the other one takes over; whole `seconds`")
	o.BoolVar(&o.nodeCredentials, "node-credentials", false, "the client has the user name system:node:NODE-NAME, like a kubelet; needs --election-kubeconfig")
	o.StringVar(&o.electionKubeconfig, "election-kubeconfig", "", "`path` of a kubeconfig file for the election and the settings, which a node's credentials don't reach (default the client of all else)")
	o.StringVar(&o.cloud, "cloud", "http://"+cloudAddress, "`URL` of the cloud")
	o.StringVar(&o.configMap, "config-map", "kubewright/agent/allinone.yaml", "`NAMESPACE/NAME/KEY` of the settings")
	o.StringVar(&o.configDir, "config-dir", "/var/lib/kubewright-allinone", "`folder` of the settings on disk, one for each replica; its parent must exist")
	o.DurationVar(&o.configSoak, "config-soak", configcheckpoint.DefaultSoak, "how `long` new settings must run well to be called good")
	o.DurationVar(&o.syncInterval, "sync-interval", 10*time.Second, "`time` between two looks at the state of the node")
	if err := o.Parse(args); err != nil {
		return nil, err
	}
	o.nodeName, o.cloud = *nodeName, strings.TrimSuffix(o.cloud, "/")
	var err error
	o.configDir, err = filepath.Abs(o.configDir)
	return o, err
}

func runReplica(ctx context.Context, args []string, stdout io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	cfg, err := o.Config()
	if err != nil {
		return err
	}
	electionCfg := cfg
	if o.electionKubeconfig != "" {
		if electionCfg, err = clientcmd.BuildConfigFromFlags("", o.electionKubeconfig); err != nil {
			return err
		}
	}
	s := &site{
		nodeName: o.nodeName, nodeCredentials: o.nodeCredentials, syncInterval: o.syncInterval, cloud: o.cloud,
		cloudClient: &http.Client{Timeout: 10 * time.Second},
		printf: func(format string, args ...any) {
			fmt.Fprintf(stdout, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05.000")}, args...)...)
		},
	}
	if s.heartbeats, err = kube.Heartbeats(cfg); err != nil {
		return err
	}
	if s.client, err = kube.Unlimited(cfg); err != nil {
		return err
	}
	// Renewals use their own connection, so that no other request delays them.
	renewals, err := kube.Heartbeats(electionCfg)
	if err != nil {
		return err
	}
	s.candidate, err = s.newCandidate(o, renewals)
	if err != nil {
		return err
	}
	settingsClient, err := kube.Unlimited(electionCfg)
	if err != nil {
		return err
	}
	checkpoint, err := newCheckpoint(s, settingsClient.CoreV1(), o.configDir, o.configMap, o.configSoak)
	if err != nil {
		return err
	}
	s.condition = configkube.NodeCondition(checkpoint.Status, configCondition)
	recorder, shutdown, err := kube.Events(ctx, cfg, "kubewright-allinone")
	if err != nil {
		return err
	}
	defer shutdown()
	s.recorder = recorder
	// Report invalid flags now, not in the first term.
	if _, err := s.newNode(election.Term{}); err != nil {
		return err
	}

	// Boot chooses the settings without the API server.
	active, err := checkpoint.Boot(ctx)
	if err != nil {
		return err
	}
	s.settings = active.Config
	err = kubewright.Run(ctx, s.candidate, checkpoint)
	failure := err
	if errors.Is(err, configcheckpoint.ErrRestart) {
		failure = nil // it is the checkpoint that has ended
	}
	// A failure counts against settings on trial; a requested stop does not. An
	// error that wraps ErrRestart, because settings could not be applied, makes
	// this process end with a status other than 0, so that it is restarted.
	return errors.Join(err, checkpoint.Close(failure))
}

// newCandidate returns the outermost controller: the whole node is its work.
func (s *site) newCandidate(o *options, client *kube.HeartbeatClient) (*election.Candidate, error) {
	namespace, name, _ := strings.Cut(o.lease, "/")
	timing := election.Timing{LeaseDuration: o.leaseDuration}.WithDefaults()
	s.lastWords = timing.Drain / 3 // of the devices, and after them of the pods
	return election.New(election.Config{
		Client: client.CoordinationV1(),
		Lease:  types.NamespacedName{Namespace: namespace, Name: name},
		Self:   election.Peer{Identity: o.identity},
		Timing: timing,
		Lead:   s.serve,
		Hooks: election.Hooks{
			LeaderChanged: func(c election.LeaderChanged) { s.printf("leader: %q", c.To) },
		},
	})
}

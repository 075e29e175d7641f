// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Agent is a program that takes its configuration from a ConfigMap and survives
// any content of it. It boots with the configuration on its disk, tries new
// configurations, and returns to the last good one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright"
	"github.com/kubewright/kubewright/configcheckpoint"
	configkube "github.com/kubewright/kubewright/configcheckpoint/kube"
	"github.com/kubewright/kubewright/examples/internal/kube"
)

// version is set by the linker (-ldflags=-X=main.version=...). A new version
// tries a rejected configuration again.
var version = "dev"

// conditionType is the type of the condition that shows the status.
const conditionType = "AgentConfigOK"

func main() { kube.Main(run) }

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := kube.NewFlags("agent")
	nodeName := flags.String("node-name", "", "`name` of a Node, which a kubelet maintains, that shows the condition "+conditionType+"; empty for none")
	dir := flags.String("store", "/var/lib/kubewright-agent", "`directory` of the configuration on disk; its parent must exist")
	ref := flags.String("configmap", "kubewright/agent/config.yaml", "`namespace/name/key` of the configuration")
	soak := flags.Duration("soak", configcheckpoint.DefaultSoak, "how `long` a new configuration must run well to be called good")
	every := flags.Duration("health-every", configcheckpoint.DefaultEvery, "how `often` the health of a new configuration is checked")
	grace := flags.Duration("health-grace", configcheckpoint.DefaultGrace, "how `long` a new configuration may be unhealthy")
	supervised := flags.Bool("supervise", false, "restart the agent whenever it fails, as systemd does")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *supervised && os.Getenv(childMark) == "" {
		return supervise(ctx, args, stdout)
	}
	cfg, err := flags.Config()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	namespace, rest, _ := strings.Cut(*ref, "/")
	name, key, _ := strings.Cut(rest, "/")
	source, err := configkube.ConfigMap(client.CoreV1(), namespace, name, key)
	if err != nil {
		return err
	}

	work := &work{stdout: stdout}
	var running []interface{ Run(context.Context) error }
	report := func(configcheckpoint.Status) {}
	if *nodeName != "" {
		reporter, err := configkube.NewReporter(client.CoreV1(), *nodeName, conditionType)
		if err != nil {
			return err
		}
		running, report = append(running, reporter), reporter.StatusChanged
	}
	controller, err := configcheckpoint.New(configcheckpoint.Config[Settings]{
		Dir: *dir,
		Codec: configcheckpoint.Codec[Settings]{
			Decode:   decode,
			Validate: Settings.validate,
			Default:  func() (Settings, error) { return Settings{Greeting: "hello"}, nil },
		},
		Source: source,
		Build:  version,
		Trial:  configcheckpoint.Trial{Soak: *soak, Every: *every, Grace: *grace, Health: work.health},
		Hooks: configcheckpoint.Hooks{StatusChanged: func(s configcheckpoint.Status) {
			c := configkube.Condition(s, conditionType)
			fmt.Fprintf(stdout, "%s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
			report(s)
		}},
	})
	if err != nil {
		return err
	}
	// From here on the agent needs no API server: it may become available hours
	// later.
	active, err := controller.Boot(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "booted with the %s configuration, %s\n", active.Role, active.Ref)

	err = kubewright.Run(ctx, append(running, controller, job{work, active.Config})...)
	failure := err
	if errors.Is(err, configcheckpoint.ErrRestart) {
		failure = nil // it is the controller that has ended
	}
	// The reason for the end of the work decides whether this start counts
	// against the configuration: a requested stop does not count.
	err = errors.Join(err, controller.Close(failure))
	if errors.Is(err, configcheckpoint.ErrRestart) {
		return restart{err}
	}
	return err
}

// A job is the work with the settings of this start.
type job struct {
	*work
	settings Settings
}

// Name is the name in the errors of kubewright.Run.
func (job) Name() string { return "work" }

// Run works until ctx is done.
func (j job) Run(ctx context.Context) error { return j.run(ctx, j.settings) }

// restart is the error of a process that requests a restart.
type restart struct{ error }

// ExitStatus returns EX_TEMPFAIL of sysexits.h. Any status except 0 would do:
// after status 0, a supervisor with Restart=on-failure would not restart the
// agent.
func (restart) ExitStatus() int { return 75 }
